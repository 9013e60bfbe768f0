/* Behaviour that all pages share. Nothing here is needed to use the console: forms and links work without it. */
"use strict";

(() => {
  const $ = (selector, root = document) => root.querySelector(selector);
  const $$ = (selector, root = document) => [...root.querySelectorAll(selector)];

  /* ---- the live part of the page, the verdict, and how old they are */

  const WORDS = {
    connecting: "connecting", connected: "live", reconnecting: "connection lost", paused: "paused", gone: "not followed",
    stale: "collector silent", unavailable: "no data",
  };
  const connection = $("#connection");
  let live = null;
  let freshness = connection?.dataset.freshness;

  /* The first of all sockets that does not follow any more, else the page's own. */
  function worstSocket() {
    const sockets = [...ConsoleSocket.all];
    for (const state of ["gone", "reconnecting", "paused"]) {
      const found = sockets.find((each) => each.state === state);
      if (found) return found;
    }
    return live;
  }

  function age(ms) {
    const seconds = Math.max(0, Math.floor(ms / 1000));
    const minutes = Math.floor(seconds / 60);
    const hours = Math.floor(minutes / 60);
    if (minutes < 1) return `${seconds} s ago`;
    if (hours < 1) return `${minutes} min ${seconds % 60} s ago`;
    return hours < 48 ? `${hours} h ${minutes % 60} min ago` : `${Math.floor(hours / 24)} days ago`;
  }

  const SENTENCES = {
    reconnecting: (asOf) => `Connection lost; as of ${asOf}. What you see may have changed since. This page connects again by itself.`,
    paused: (asOf) => `Paused; as of ${asOf}.`,
    gone: (asOf) => `This page is not kept up to date any more; as of ${asOf}. Reload it.`,
    stale: (asOf) => `The collector has not reported; as of ${asOf}.`,
  };

  function showConnection() {
    const socket = worstSocket();
    const following = socket.state === "connected" || socket.state === "connecting";
    const known = freshness === "stale" || freshness === "unavailable" ? freshness : socket.state;
    const shown = following ? known : socket.state;
    if (connection.dataset.state !== shown) {
      connection.dataset.state = shown;
      $(".words", connection).textContent = WORDS[shown];
    }
    const sentence = SENTENCES[shown];
    const asOf = sentence ? age(Date.now() - socket.asOf) : "";
    document.body.classList.toggle("out-of-date", Boolean(sentence));
    const place = $("#out-of-date");
    place.hidden = !sentence;
    if (sentence) place.textContent = sentence(asOf);
    for (const verdict of $$("#verdict-pill, [data-verdict]")) {
      if (sentence) verdict.dataset.asOf = `as of ${asOf}`;
      else delete verdict.dataset.asOf;
    }
  }

  function livePath() {
    const part = $("#live");
    const parameters = new URLSearchParams({ view: part ? part.dataset.view : "bar" });
    if (part) parameters.set("query", part.dataset.query);
    return `/ws/snapshot?${parameters}`;
  }

  function onSnapshot(message) {
    freshness = message.freshness;
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
    live = new ConsoleSocket(livePath, { message: onSnapshot, ageMs: Number(connection.dataset.ageMs) });
    document.addEventListener("console:connection", showConnection);
    setInterval(() => {
      ConsoleSocket.watch();
      showConnection();
    }, 1000);
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

  const LOST_IN_DIALOG = "The connection is lost. What is shown here is what was heard last; it goes on when the connection is back.";

  function followOperations() {
    for (const place of $$("[data-operation-socket]")) {
      if (place.dataset.followed !== undefined || place.dataset.finished !== undefined) continue;
      place.dataset.followed = "";
      new ConsoleSocket(`/ws/operations/${place.dataset.operationSocket}`, {
        message: (message, socket) => {
          if (!place.isConnected) return socket.close();
          Morph.into(place, message.html);
          if (!message.finished) return;
          for (const each of $$(`[data-until-finished="${place.dataset.operationSocket}"]`)) each.remove();
          socket.close();
        },
        state: (state) => {
          if (state === "connected") Failures.clear(place);
          else if (place.closest("dialog")) Failures.show(place, LOST_IN_DIALOG); /* the bar is not seen behind it */
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

  /* Asked by the body: the link may be gone with the next snapshot, and with it what becomes of its request. */
  async function openDialog(link) {
    link.setAttribute("aria-busy", "true");
    try {
      await htmx.ajax("GET", link.href, { target: "#dialog-place", swap: "innerHTML" });
    } catch {
      /* failures.js has said it */
    }
    link.removeAttribute("aria-busy");
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
      openDialog(target);
    } else if (target.dataset.close !== undefined) {
      target.closest("dialog").close();
    } else if (target.dataset.toggle) {
      const open = document.body.classList.toggle(`${target.dataset.toggle}-open`);
      target.setAttribute("aria-expanded", String(open));
    } else if (target.dataset.palette !== undefined) {
      openPalette();
    } else if (target.dataset.copy) {
      copy(target);
    } else if (target.dataset.confirm && !window.confirm(target.dataset.confirm)) {
      event.preventDefault();
    }
  });

  async function copy(button) {
    try {
      await navigator.clipboard.writeText($(button.dataset.copy).textContent.trim());
      button.lastChild.nodeValue = " Copied";
      Failures.clear(button);
    } catch {
      Failures.show(button, "The browser does not let this page copy. Mark the text and copy it by hand.");
    }
  }

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
})();
