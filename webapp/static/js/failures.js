/* What went wrong on the way: each request that a page makes and that fails says so, as a sentence with what to do, beside the form
   or list that asked, else in the corner of the page. The sentence stays until it is closed or the same asker succeeds. */
"use strict";

const Failures = (() => {
  const shown = new Map(); /* who asked -> the notice */

  const asksByItself = (asker) => (asker.getAttribute?.("hx-trigger") || "").includes("every ");

  function put(notice, asker) {
    const form = asker.closest("form");
    const dialog = asker.closest("dialog");
    if (asksByItself(asker)) return asker.before(notice);
    if (form) return form.after(notice);
    if (dialog) return dialog.append(notice);
    let corner = document.getElementById("failures");
    if (!corner) {
      corner = document.createElement("div");
      corner.id = "failures";
      document.body.append(corner);
    }
    corner.append(notice);
  }

  function show(asker, text) {
    const before = shown.get(asker);
    if (before?.isConnected && before.firstChild.textContent === text && asksByItself(asker)) return; /* it was read out already */
    before?.remove();
    const notice = document.createElement("div");
    notice.className = "failure notice tone-bad";
    notice.setAttribute("role", "alert");
    const sentence = document.createElement("p");
    sentence.textContent = text;
    const button = document.createElement("button");
    button.type = "button";
    button.className = "ghost";
    button.textContent = "×";
    button.setAttribute("aria-label", "Close this message");
    button.addEventListener("click", () => clear(asker));
    notice.append(sentence, button);
    shown.set(asker, notice);
    put(notice, asker);
  }

  function clear(asker) {
    shown.get(asker)?.remove();
    shown.delete(asker);
  }

  /* No answer at all; `changes` says whether something may have been done. */
  function unanswered(changes) {
    return changes
      ? "The console did not answer, so nobody knows whether this was done. When the connection is back, look first, and ask again if it was not."
      : "The console does not answer. Try again when the connection is back.";
  }

  /* An answer that is a refusal: what it says itself, if it says something. */
  function refused(status, header, body) {
    const seconds = Number(header("Retry-After"));
    if (status === 429) return `The console was asked too often. Try again ${seconds ? `in ${seconds} s` : "in a minute"}.`;
    if (status >= 500) {
      const id = header("X-Request-Id");
      return id
        ? `The console met an error of its own. Try again; if it stays, the console's log has the details under ${id}.`
        : `The console is not there at the moment (${status}). Try again shortly.`;
    }
    const answer = document.createElement("template");
    answer.innerHTML = body;
    const words = [...answer.content.querySelectorAll(".notice strong, .notice p")].map((each) => each.textContent.trim());
    return words.length ? words.join(": ") : `The console refused this (${status}). Reload the page and try again.`;
  }

  /* ---- requests of htmx */

  const isGet = (event) => event.detail.requestConfig.verb === "get";
  const again = (asker) => (asksByItself(asker) ? " This list asks again by itself." : "");

  function onNoAnswer(event) {
    show(event.detail.elt, unanswered(!isGet(event)) + again(event.detail.elt));
  }
  document.addEventListener("htmx:sendError", onNoAnswer);
  document.addEventListener("htmx:timeout", onNoAnswer);

  document.addEventListener("htmx:responseError", (event) => {
    const { xhr, elt } = event.detail;
    show(elt, refused(xhr.status, (name) => xhr.getResponseHeader(name), xhr.responseText) + again(elt));
  });

  for (const name of ["htmx:onLoadError", "htmx:swapError", "htmx:targetError"]) {
    document.addEventListener(name, (event) => show(event.target, "The answer could not be shown. Reload the page."));
  }

  document.addEventListener("htmx:beforeRequest", (event) => {
    const asker = event.detail.elt;
    if (!asksByItself(asker) && asker !== document.body) asker.setAttribute("aria-busy", "true");
  });
  document.addEventListener("htmx:afterRequest", (event) => {
    event.detail.elt.removeAttribute("aria-busy");
    if (event.detail.successful) clear(event.detail.elt);
  });

  return { show, clear, unanswered, refused };
})();
