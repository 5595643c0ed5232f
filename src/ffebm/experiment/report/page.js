// Draws the charts in the colours of the page: light, dark, or for print.
(() => {
  "use strict";
  const charts = JSON.parse(document.getElementById("charts").textContent);
  const places = [...document.querySelectorAll(".chart")];
  const dark = window.matchMedia("(prefers-color-scheme: dark)");
  const print = window.matchMedia("print");
  const touch = window.matchMedia("(pointer: coarse)").matches;
  // Distinct for eyes of all kinds, on light and on dark ground.
  const colours = {
    light: ["#1b62a5", "#d9822b", "#3a9d5d", "#b0413e", "#7a52a3", "#8a6d3b", "#c2589b", "#4a5563"],
    dark: ["#6db3f2", "#f0a860", "#7bd39a", "#ee8580", "#bd9be6", "#d3b57c", "#f09fd0", "#b9c3d0"],
  };

  function draw(place, chart) {
    const night = dark.matches && !print.matches;
    const palette = night ? colours.dark : colours.light;
    const ink = night ? "#e4e8ee" : "#1c2430";
    const line = night ? "#343d49" : "#d8dee6";
    const traces = chart.traces.map(({ colour, ...trace }) => {
      const shade = palette[colour % palette.length];
      return { ...trace, line: { ...trace.line, color: shade }, marker: { color: shade, size: trace.mode === "markers" ? 9 : 6 } };
    });
    const axis = { gridcolor: line, zerolinecolor: line, linecolor: line, automargin: true };
    const longest = Math.max(...traces.map((trace) => trace.name.length));
    const below = place.clientWidth < 600 || longest > 20; // beside it, names take its width
    const columns = Math.max(1, Math.floor(place.clientWidth / (5.5 * longest + 60)));
    const legend = below && traces.length > 1 ? 17 * Math.ceil(traces.length / columns) : 0;
    const [plot, axisTitle] = [270, 50]; // pixels: what is below the plot must not take from its height
    const layout = {
      font: { family: "system-ui, sans-serif", size: 12, color: ink },
      paper_bgcolor: "rgba(0,0,0,0)",
      plot_bgcolor: "rgba(0,0,0,0)",
      height: 10 + plot + axisTitle + legend,
      margin: { l: 50, r: 12, t: 10, b: axisTitle + legend },
      hovermode: "closest",
      dragmode: touch ? false : "zoom", // a finger scrolls the page
      showlegend: traces.length > 1,
      legend: below ? { orientation: "h", y: -axisTitle / plot, yanchor: "top", font: { size: 10 } } : { font: { size: 11 } },
      xaxis: { ...axis, title: { text: chart.x }, ...(chart.steps ? { type: "category" } : {}) },
      yaxis: { ...axis, title: { text: chart.y }, type: chart.log ? "log" : "linear", exponentformat: "power" },
    };
    Plotly.react(place, traces, layout, { responsive: true, displaylogo: false, displayModeBar: touch ? true : "hover" });
  }

  const drawAll = () => places.forEach((place, i) => draw(place, charts[i]));
  // On paper there is nothing to unfold.
  const folded = [...document.querySelectorAll("details:not([open])")];
  window.addEventListener("beforeprint", () => folded.forEach((part) => (part.open = true)));
  window.addEventListener("afterprint", () => folded.forEach((part) => (part.open = false)));
  if (charts.length) {
    drawAll();
    dark.addEventListener("change", drawAll);
    print.addEventListener("change", drawAll);
  }
})();
