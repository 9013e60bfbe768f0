/* The page of a report's run: progress and partial rows while it runs, charts from what has come so far. When the run is over the
   server's own tables take their place. */
"use strict";

(() => {
  const page = document.getElementById("run");
  if (!page) return;
  const layout = JSON.parse(document.getElementById("run-layout").textContent);
  const SHOWN_ROWS = 200;
  const SERIES = 8;
  const CHART_POINTS = 10000;
  const ASK_AGAIN_MS = 3000;
  const rows = new Map(layout.map((section) => [section.name, new Map()]));

  const $ = (selector, root = page) => root.querySelector(selector);
  const sectionPlace = (name) => $(`[data-section="${CSS.escape(name)}"]`);

  /* ---- values as the server shows them */

  function count(value) {
    return String(Math.trunc(value)).replace(/\B(?=(\d{3})+(?!\d))/g, "\u202f");
  }

  function size(value) {
    let number = value;
    if (Math.abs(number) < 1024) return `${Math.trunc(number)}\u202fB`;
    for (const unit of ["KiB", "MiB", "GiB", "TiB", "PiB"]) {
      number /= 1024;
      if (Math.abs(number) < 1024 || unit === "PiB") return `${number.toFixed(1)}\u202f${unit}`;
    }
    return "";
  }

  /* As a bar with its number. */
  function share(value) {
    const bar = document.createElement("progress");
    bar.value = value;
    bar.ariaHidden = "true";
    const whole = document.createElement("span");
    whole.className = "share";
    whole.append(bar, `${(100 * value).toFixed(value > 0 && value < 0.1 ? 2 : 1)}\u202f%`);
    return whole;
  }

  function shown(value, type) {
    if (value === null || value === undefined || value === "") return "–";
    if (type === "integer") return count(value);
    if (type === "bytes") return size(value);
    if (type === "share") return share(value);
    if (type === "time") return Times.element(Date.parse(value), { toMinute: true });
    return String(value);
  }

  function compare(a, b) {
    if (a === b) return 0;
    if (a === null || a === undefined) return -1;
    if (b === null || b === undefined) return 1;
    return a < b ? -1 : 1;
  }

  function sorted(section) {
    const order = section.sort.map((name) => (name.startsWith("-") ? [name.slice(1), -1] : [name, 1]));
    return [...rows.get(section.name).values()].sort((a, b) => {
      for (const [name, sign] of order) {
        const found = compare(a.data[name], b.data[name]) * sign;
        if (found) return found;
      }
      return 0;
    });
  }

  /* ---- drawing */

  function drawTable(section) {
    const place = sectionPlace(section.name);
    const all = sorted(section);
    if (!all.length) return;
    const body = document.createElement("tbody");
    for (const row of all.slice(0, SHOWN_ROWS)) {
      const line = body.insertRow();
      if (!row.final) line.className = "partial";
      for (const column of section.columns) {
        const cell = line.insertCell();
        cell.replaceChildren(shown(row.data[column.name], column.type));
        cell.className = { text: "name", time: "time" }[column.type] || "number";
      }
    }
    $("[data-rows]", place).replaceChildren(...body.childNodes);
    $("[data-count]", place).textContent =
      `${count(all.length)} row${all.length === 1 ? "" : "s"} so far${all.length > SHOWN_ROWS ? `, the first ${SHOWN_ROWS} shown` : ""}`;
  }

  /* As the server does it (webapp/reports/results.py): with a step, a time without a row is a 0, a value not known is a gap. */
  function chartOf(section) {
    const { x, series, value, step_s: step, largest } = section.chart;
    const sums = new Map();
    const add = (line, at, amount) => {
      const known = line.get(at) ?? null;
      if ((amount ?? null) === null || known === null) line.set(at, known ?? amount ?? null);
      else line.set(at, largest ? Math.max(known, amount) : known + amount);
    };
    for (const { data } of rows.get(section.name).values()) {
      if (data[x] === null || data[x] === undefined) continue;
      const name = String(data[series]);
      if (!sums.has(name)) sums.set(name, new Map());
      add(sums.get(name), Date.parse(data[x]) / 1000, data[value]);
    }
    const total = (name) => [...sums.get(name).values()].reduce((sum, each) => sum + (each || 0), 0);
    const names = [...sums.keys()].sort((a, b) => total(b) - total(a) || compare(a, b)).slice(0, SERIES);
    const found = new Set(names.flatMap((name) => [...sums.get(name).keys()]));
    const first = Math.min(...found);
    const last = Math.max(...found);
    if (step && (last - first) / step <= CHART_POINTS) for (let at = first; at <= last; at += step) found.add(at);
    const times = [...found].sort((a, b) => a - b);
    const at = (line, time) => (line.has(time) ? line.get(time) : step && !largest ? 0 : null);
    return { series: names, data: [times, ...names.map((name) => times.map((time) => at(sums.get(name), time)))] };
  }

  function drawChart(section) {
    const place = $("[data-chart]", sectionPlace(section.name));
    if (!place || !section.chart) return;
    const content = chartOf(section);
    if (content.data[0].length) Charts.draw(place, content, section.chart.step_s);
  }

  function bar(label, done, total, running, unit = "tasks") {
    const line = document.createElement("div");
    line.className = "stage";
    const name = document.createElement("span");
    name.textContent = label;
    const progress = document.createElement("progress");
    progress.ariaLabel = label;
    if (total) {
      progress.max = total;
      progress.value = done;
    }
    const numbers = document.createElement("span");
    numbers.className = "number";
    numbers.textContent = total ? `${count(done)} of ${count(total)} ${unit}${running ? ", running" : ""}` : "";
    line.append(name, progress, numbers);
    return line;
  }

  function drawProgress(message) {
    const place = $("#run-progress");
    if (!place) return;
    const progress = message.progress || {};
    const lines = (progress.stages || []).map((stage) =>
      bar(stage.name || `Stage ${stage.id}`, stage.done || 0, stage.total || 0, stage.running || false));
    if (progress.rows_total) lines.unshift(bar("Messages read", progress.rows_read || 0, progress.rows_total, false, ""));
    if (!lines.length && !message.finished) lines.push(bar(message.state === "queued" ? "Waiting for a worker" : "Starting Spark", 0, 0, false));
    place.replaceChildren(...lines);
    $("#run-text").textContent = progress.text || "";
    if (message.cancel_requested) {
      const button = $("#run-cancel");
      if (button) button.disabled = true;
    }
    if (page.dataset.state !== message.state) {
      page.dataset.state = message.state;
      const words = $("#run-state .state span");
      if (words) words.textContent = message.state;
      $("#run-state .state").className = "state tone-busy";
    }
  }

  function drawFinished() {
    for (const section of layout) {
      const content = document.getElementById(`chart-${section.name}`);
      const place = $("[data-chart]", sectionPlace(section.name));
      if (content && place) Charts.draw(place, JSON.parse(content.textContent), section.chart.step_s);
    }
  }

  /* ---- following */

  async function takeResults() {
    try {
      const answer = await fetch(location.href, { headers: { "HX-Request": "true" } });
      if (answer.status === 401) return ConsoleSocket.toLogin();
      const body = await answer.text();
      if (answer.ok) {
        Failures.clear(page);
        page.innerHTML = body;
        page.dataset.finished = "";
        return drawFinished();
      }
      failed(Failures.refused(answer.status, (name) => answer.headers.get(name), body));
    } catch {
      failed(Failures.unanswered(false));
    }
  }

  function failed(sentence) {
    Failures.show(page, `The report is over, and its results are not here yet: ${sentence} This page asks again by itself.`);
    setTimeout(takeResults, ASK_AGAIN_MS);
  }

  function onMessage(message, socket) {
    const touched = new Set();
    for (const row of message.rows) {
      rows.get(row.section)?.set(row.key, row);
      touched.add(row.section);
    }
    drawProgress(message);
    for (const section of layout) {
      if (!touched.has(section.name)) continue;
      drawTable(section);
      drawChart(section);
    }
    if (message.finished && message.complete) {
      socket.close();
      takeResults();
    }
  }

  if (page.dataset.finished !== undefined) drawFinished();
  else new ConsoleSocket(`/ws/report-runs/${page.dataset.run}`, { message: onMessage });
})();
