"use strict";
const COLOURS = ["#3b82f6", "#f97316", "#22a06b", "#a855f7", "#ef4444", "#14b8a6", "#ca8a04", "#ec4899"];
const dark = matchMedia("(prefers-color-scheme: dark)");
let shown = JSON.parse(document.getElementById("data").textContent);

function coloured(trace) {
  const { colour, band, ...plain } = trace;
  const own = COLOURS[colour % COLOURS.length];
  return {
    ...plain,
    line: { color: own, width: 2, ...plain.line },
    marker: { color: own, size: 5 },
    ...(band ? { fillcolor: own + "22" } : {}),
  };
}

function layout(figure) {
  const style = getComputedStyle(document.documentElement);
  const ink = style.getPropertyValue("--ink"), line = style.getPropertyValue("--line");
  const axis = { gridcolor: line, zerolinecolor: line, exponentformat: "e", automargin: true };
  return {
    title: { text: figure.title, font: { size: 14 }, x: 0.02, xanchor: "left" },
    paper_bgcolor: "rgba(0,0,0,0)",
    plot_bgcolor: "rgba(0,0,0,0)",
    font: { color: ink, size: 11 },
    margin: { l: 45, r: 10, t: 34, b: 30 },
    barmode: "stack",
    hovermode: "x unified",
    hoverlabel: { bgcolor: style.getPropertyValue("--card"), font: { color: ink } },
    showlegend: figure.many,
    legend: { orientation: "h", y: -0.18, yanchor: "top" },
    xaxis: { ...axis, dtick: figure.dtick, tickformat: "d" },
    yaxis: { ...axis, rangemode: "normal" },
  };
}

function show() {
  const opened = [...document.querySelectorAll("details")].map((one) => one.open);
  document.getElementById("top").innerHTML = shown.top;
  document.getElementById("bottom").innerHTML = shown.bottom;
  document.querySelectorAll("details").forEach((one, place) => { one.open = opened[place] || false; });
  const charts = document.getElementById("charts");
  while (charts.children.length > shown.figures.length) charts.lastChild.remove();
  // All boxes first: a figure takes the width that its box has when it is drawn.
  while (charts.children.length < shown.figures.length) charts.append(document.createElement("div"));
  shown.figures.forEach((figure, place) => {
    const box = charts.children[place];
    box.className = figure.traces.length > 4 ? "chart tall" : "chart";
    Plotly.react(box, figure.traces.map(coloured), layout(figure), { responsive: true, displayModeBar: false });
  });
}

async function news() {
  try {
    const answer = await fetch("content");
    if (answer.ok) { shown = { ...(await answer.json()), live: true }; show(); }
  } catch (error) { /* the server has ended; the page keeps what it has */ }
}

show();
dark.addEventListener("change", show);
if (shown.live) setInterval(news, 3000);
