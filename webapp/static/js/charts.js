/* Lines over time, drawn by uPlot in the colours of the page. */
"use strict";

const Charts = (() => {
  const HEIGHT = 240;
  /* step in seconds, label, label where the year, month, day, ... changes */
  const CLOCK = [
    [31536000, "{YYYY}", null, null, null, null, null, null, 1],
    [2419200, "{YYYY}-{MM}", null, null, null, null, null, null, 1],
    [86400, "{MM}-{DD}", "\n{YYYY}", null, null, null, null, null, 1],
    [60, "{HH}:{mm}", "\n{YYYY}-{MM}-{DD}", null, "\n{MM}-{DD}", null, null, null, 1],
    [1, "{HH}:{mm}:{ss}", "\n{YYYY}-{MM}-{DD}", null, "\n{MM}-{DD}", null, null, null, 1],
  ];
  const drawn = new Map(); /* place -> {chart, document} */

  const variable = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();

  function options(content, width) {
    const ink = variable("--muted");
    const rule = { stroke: variable("--line"), width: 1 };
    return {
      width,
      height: HEIGHT,
      cursor: { points: { size: 6 } },
      tzDate: (seconds) => uPlot.tzDate(new Date(seconds * 1000), Times.zone),
      scales: { x: { time: true } },
      axes: [
        { stroke: ink, grid: rule, ticks: rule, values: CLOCK },
        { stroke: ink, grid: rule, ticks: rule, size: 64 },
      ],
      series: [
        { value: "{YYYY}-{MM}-{DD} {HH}:{mm}" },
        ...content.series.map((label, index) => ({
          label,
          stroke: variable(`--series-${(index % 8) + 1}`),
          width: 2,
          spanGaps: false,
          points: { show: content.data[0].length < 40, size: 5 },
        })),
      ],
    };
  }

  function draw(place, content) {
    const before = drawn.get(place);
    const width = Math.max(280, place.clientWidth);
    if (before && String(before.content.series) === String(content.series) && before.theme === theme()) {
      before.content = content;
      before.chart.setData(content.data);
      return;
    }
    if (before) before.chart.destroy();
    place.classList.add("drawn");
    drawn.set(place, { chart: new uPlot(options(content, width), content.data, place), content, theme: theme() });
  }

  const theme = () => `${document.documentElement.dataset.theme} ${matchMedia("(prefers-color-scheme: dark)").matches}`;

  window.addEventListener("resize", () => {
    for (const [place, { chart }] of drawn) {
      if (place.isConnected) chart.setSize({ width: Math.max(280, place.clientWidth), height: HEIGHT });
    }
  });
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => {
    for (const [place, { content }] of [...drawn]) if (place.isConnected) draw(place, content);
  });

  return { draw };
})();
