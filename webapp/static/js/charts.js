/* Lines over time, drawn by uPlot in the colours of the page. */
"use strict";

const Charts = (() => {
  const HEIGHT = 240;
  const MINUTE = 60;
  const HOUR = 60 * MINUTE;
  const DAY = 24 * HOUR;
  /* what may lie between two labels, in seconds; less than the step of the data would only repeat them */
  const TICKS = [1, 5, 15, 30, ...[1, 2, 5, 10, 15, 30].map((each) => each * MINUTE), ...[1, 2, 3, 6, 12].map((each) => each * HOUR),
    ...[1, 2, 7, 14, 30, 90, 365].map((each) => each * DAY)];
  /* step in seconds, label, label where the year, month, day, ... changes */
  const CLOCK = [
    [31536000, "{YYYY}", null, null, null, null, null, null, 1],
    [2419200, "{YYYY}-{MM}", null, null, null, null, null, null, 1],
    [86400, "{MM}-{DD}", "\n{YYYY}", null, null, null, null, null, 1],
    [60, "{HH}:{mm}", "\n{YYYY}-{MM}-{DD}", null, "\n{MM}-{DD}", null, null, null, 1],
    [1, "{HH}:{mm}:{ss}", "\n{YYYY}-{MM}-{DD}", null, "\n{MM}-{DD}", null, null, null, 1],
  ];
  const WHOLE = Array.from({ length: 16 }, (_, power) => [1, 2, 5].map((each) => each * 10 ** power)).flat();
  const drawn = new Map(); /* place -> {chart, content, step, theme} */

  const variable = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();

  /* A whole number in groups of three digits, as everywhere on the page. */
  const count = (value) => (value === null || value === undefined ? "–" : String(value).replace(/\B(?=(\d{3})+(?!\d))/g, "\u202f"));

  /* A single moment gets room on both sides; what is counted is seen from zero on. */
  const around = (step) => ({ data: [times] }, first, last) =>
    times.length > 1 ? [first, last] : [times[0] - 2 * step, times[0] + 2 * step];
  const fromZero = (_, least, most) => [Math.min(0, least ?? 0), Math.max(1, most ?? 0) * 1.08];

  const room = (_, labels) => 24 + 7 * Math.max(4, ...(labels || []).map((each) => each.length));

  function options(content, width, step) {
    const ink = variable("--muted");
    const rule = { stroke: variable("--line"), width: 1 };
    return {
      width,
      height: HEIGHT,
      cursor: { points: { size: 6 } },
      tzDate: (seconds) => uPlot.tzDate(new Date(seconds * 1000), Times.zone),
      scales: { x: { time: true, range: around(step) }, y: { range: fromZero } },
      axes: [
        { stroke: ink, grid: rule, ticks: rule, values: CLOCK, incrs: TICKS.filter((each) => each >= step) },
        { stroke: ink, grid: rule, ticks: rule, incrs: WHOLE, size: room, values: (_, ticks) => ticks.map(count) },
      ],
      series: [
        { value: "{YYYY}-{MM}-{DD} {HH}:{mm}" },
        ...content.series.map((label, index) => ({
          label,
          value: (_, value) => count(value),
          stroke: variable(`--series-${(index % 8) + 1}`),
          width: 2,
          spanGaps: false,
          points: { show: content.data[0].length < 40, size: 5 },
        })),
      ],
    };
  }

  /* `step`: seconds between two moments of the data, 0 when they come as they like. */
  function draw(place, content, step) {
    const before = drawn.get(place);
    const width = Math.max(280, place.clientWidth);
    if (before && String(before.content.series) === String(content.series) && before.theme === theme()) {
      before.content = content;
      before.chart.setData(content.data);
      return;
    }
    if (before) before.chart.destroy();
    place.classList.add("drawn");
    const chart = new uPlot(options(content, width, step || 1), content.data, place);
    drawn.set(place, { chart, content, step, theme: theme() });
  }

  const theme = () => `${document.documentElement.dataset.theme} ${matchMedia("(prefers-color-scheme: dark)").matches}`;

  window.addEventListener("resize", () => {
    for (const [place, { chart }] of drawn) {
      if (place.isConnected) chart.setSize({ width: Math.max(280, place.clientWidth), height: HEIGHT });
    }
  });
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => {
    for (const [place, { content, step }] of [...drawn]) if (place.isConnected) draw(place, content, step);
  });

  return { draw };
})();
