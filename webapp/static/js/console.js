/* Behaviour that all pages share. Nothing here is needed to use the console: forms and links work without it. */
"use strict";

(() => {
  const $ = (selector, root = document) => root.querySelector(selector);
  const $$ = (selector, root = document) => [...root.querySelectorAll(selector)];

  /* ---- the live part of the page, the verdict and the connection lamp */

  const WORDS = { connecting: "connecting", connected: "live", reconnecting: "reconnecting", paused: "paused" };
  const connection = $("#connection");
  let live = null;

  function showConnection(state, freshness = "fresh") {
    if (!connection) return;
    const shown = state === "connected" && freshness !== "fresh" ? freshness : state;
    if (connection.dataset.state === shown) return;
    connection.dataset.state = shown;
    $(".words", connection).textContent = WORDS[shown] || shown;
    document.body.classList.toggle("out-of-date", shown !== "connected" && shown !== "connecting");
  }

  function livePath() {
    const part = $("#live");
    const parameters = new URLSearchParams({ view: part ? part.dataset.view : "bar" });
    if (part) parameters.set("query", part.dataset.query);
    return `/ws/snapshot?${parameters}`;
  }

  function onSnapshot(message) {
    showConnection("connected", message.freshness);
    const part = $("#live");
    if (part && message.html !== undefined) Morph.into(part, message.html);
    const pill = $("#verdict-pill");
    if (pill && pill.dataset.status !== message.status) {
      const tone = { healthy: ["good", "check"], degraded: ["warn", "alert"], down: ["bad", "cross"] }[message.status];
      pill.dataset.status = message.status;
      pill.className = `verdict-pill tone-${tone[0]}`;
      const state = $(".state", pill);
      state.className = `state tone-${tone[0]}`;
      $("span", state).textContent = message.status;
      const use = $("use", pill);
      use.setAttribute("href", use.getAttribute("href").replace(/#.*/, `#${tone[1]}`));
    }
    if (message.as_of) showTime($("#as-of"), message.as_of);
  }

  function showTime(place, text) {
    const time = place && $("time", place);
    if (time) Times.show(time, Date.parse(text));
  }

  if (connection) {
    live = new ConsoleSocket(livePath, { message: onSnapshot, state: (state) => state !== "connected" && showConnection(state) });
  }

  /* A filter was typed: the live part now follows another query. */
  document.addEventListener("htmx:afterSettle", (event) => {
    const part = $("#live");
    if (!live || !part || event.target !== part) return;
    const query = new URLSearchParams(location.search);
    for (const [name, value] of new URLSearchParams(part.dataset.query)) {
      if (part.dataset.fixed?.split(" ").includes(name)) query.set(name, value);
    }
    part.dataset.query = query.toString();
    live.restart();
  });

  /* ---- operations */

  function followOperations() {
    for (const place of $$("[data-operation-socket]")) {
      if (place.dataset.followed !== undefined || place.dataset.finished !== undefined) continue;
      place.dataset.followed = "";
      new ConsoleSocket(`/ws/operations/${place.dataset.operationSocket}`, {
        message: (message, socket) => {
          if (!place.isConnected) return socket.close();
          Morph.into(place, message.html);
          if (message.finished) socket.close();
        },
      });
    }
  }

  /* ---- dialogs */

  function openDialogs() {
    for (const dialog of $$("#dialog-place dialog[data-open]")) {
      dialog.removeAttribute("data-open");
      dialog.addEventListener("close", () => dialog.remove());
      dialog.showModal();
    }
  }

  document.addEventListener("htmx:afterSettle", () => {
    openDialogs();
    followOperations();
  });
  followOperations();

  /* ---- clicks */

  document.addEventListener("click", (event) => {
    const target = event.target.closest("[data-dialog], [data-close], [data-toggle], [data-palette], [data-copy], [data-confirm]");
    if (!target) return;
    if (target.dataset.dialog !== undefined && !event.ctrlKey && !event.metaKey && event.button === 0) {
      event.preventDefault();
      htmx.ajax("GET", target.href, { target: "#dialog-place", swap: "innerHTML" });
    } else if (target.dataset.close !== undefined) {
      target.closest("dialog").close();
    } else if (target.dataset.toggle) {
      const open = document.body.classList.toggle(`${target.dataset.toggle}-open`);
      target.setAttribute("aria-expanded", String(open));
    } else if (target.dataset.palette !== undefined) {
      openPalette();
    } else if (target.dataset.copy) {
      navigator.clipboard.writeText($(target.dataset.copy).textContent.trim()).then(() => {
        target.lastChild.nodeValue = " Copied";
      });
    } else if (target.dataset.confirm && !window.confirm(target.dataset.confirm)) {
      event.preventDefault();
    }
  });

  /* ---- the palette */

  const palette = $("#palette");

  function openPalette() {
    if (!palette || palette.open) return;
    palette.showModal();
    const input = $("input", palette);
    input.value = "";
    htmx.trigger(input, "opened");
  }

  document.addEventListener("keydown", (event) => {
    if ((event.ctrlKey || event.metaKey) && event.key.toLowerCase() === "k") {
      event.preventDefault();
      openPalette();
    }
    if (!palette || !palette.open) return;
    const links = $$("a", palette);
    const at = links.indexOf(document.activeElement);
    if (event.key === "ArrowDown" || event.key === "ArrowUp") {
      event.preventDefault();
      const next = at + (event.key === "ArrowDown" ? 1 : -1);
      if (next < 0) $("input", palette).focus();
      else links[Math.min(next, links.length - 1)]?.focus();
    } else if (event.key === "Enter" && at < 0 && links.length) {
      event.preventDefault();
      links[0].click();
    }
  });
  palette?.addEventListener("click", (event) => {
    if (event.target === palette) palette.close();
  });

  /* ---- forms */

  document.addEventListener("change", (event) => {
    const target = event.target;
    if (target.dataset.submit !== undefined) target.form.requestSubmit();
    if (target.dataset.queueChoice !== undefined) {
      target.form.elements.offset.value = "";
      target.form.elements.time.value = "";
      target.form.requestSubmit();
    }
  });

  for (const input of $$("[data-must-equal]")) {
    const button = $("button:not([type=button])", input.form);
    const check = () => { button.disabled = input.value.trim() !== input.dataset.mustEqual; };
    input.addEventListener("input", check);
    check();
  }

  /* Empty fields make long addresses for nothing. */
  document.addEventListener("submit", (event) => {
    if (event.target.method !== "get") return;
    for (const field of event.target.elements) if (field.name && !field.value) field.disabled = true;
    setTimeout(() => { for (const field of event.target.elements) field.disabled = false; });
  });

  /* ---- rows that unfold */

  document.addEventListener("htmx:beforeRequest", (event) => {
    if (event.target.dataset.fold === undefined) return;
    const place = event.detail.target;
    if (place && place.hasChildNodes()) {
      event.preventDefault();
      place.replaceChildren();
    }
  });

  /* ---- what went wrong on the way */

  function toast(text) {
    const place = document.createElement("div");
    place.className = "toast notice tone-bad";
    place.setAttribute("role", "alert");
    place.textContent = text;
    document.body.append(place);
    setTimeout(() => place.remove(), 6000);
  }

  document.addEventListener("htmx:responseError", (event) => {
    const answer = document.createElement("template");
    answer.innerHTML = event.detail.xhr.responseText;
    toast(answer.content.querySelector(".notice")?.textContent.trim() || `The console answered ${event.detail.xhr.status}.`);
  });
})();
