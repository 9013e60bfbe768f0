/* Bring a part of the page to new HTML while keeping what did not change: focus, selection, scroll positions, open folds.
   Elements are matched by id or data-key, others by position. An element with data-flash whose text changed is lit up briefly. */
"use strict";

const Morph = (() => {
  const key = (node) => (node.nodeType === Node.ELEMENT_NODE ? node.id || node.dataset.key || null : null);

  const same = (a, b) => a.nodeType === b.nodeType && a.nodeName === b.nodeName && key(a) === key(b);

  function attributes(from, to) {
    for (const { name, value } of [...to.attributes]) {
      if (from.getAttribute(name) !== value) from.setAttribute(name, value);
    }
    for (const { name } of [...from.attributes]) {
      if (to.hasAttribute(name)) continue;
      if (name === "open" && (from.nodeName === "DETAILS" || from.nodeName === "DIALOG")) continue;
      from.removeAttribute(name);
    }
  }

  function element(from, to) {
    if (from.isEqualNode(to)) return;
    const lit = from.dataset.flash !== undefined && from.textContent !== to.textContent;
    attributes(from, to);
    if (from.nodeName === "INPUT" || from.nodeName === "TEXTAREA") {
      if (from !== document.activeElement) from.value = to.value;
    } else {
      children(from, to);
    }
    if (lit) flash(from);
  }

  function flash(node) {
    node.classList.remove("flash");
    void node.offsetWidth; /* start the animation anew */
    node.classList.add("flash");
  }

  function children(from, to) {
    const keyed = new Map();
    for (const child of from.childNodes) if (key(child)) keyed.set(key(child), child);
    let place = from.firstChild;
    for (const wanted of [...to.childNodes]) {
      const name = key(wanted);
      let match = null;
      if (name) {
        match = keyed.get(name) || null;
        if (match && match.nodeName !== wanted.nodeName) match = null;
      } else if (place && same(place, wanted)) {
        match = place;
      }
      if (!match) {
        from.insertBefore(document.importNode(wanted, true), place);
        continue;
      }
      if (match === place) place = place.nextSibling;
      else from.insertBefore(match, place);
      if (match.nodeType === Node.ELEMENT_NODE) element(match, wanted);
      else if (match.nodeValue !== wanted.nodeValue) match.nodeValue = wanted.nodeValue;
    }
    while (place) {
      const gone = place;
      place = place.nextSibling;
      gone.remove();
    }
  }

  return {
    into(target, html) {
      const template = document.createElement("template");
      template.innerHTML = html;
      children(target, template.content);
    },
  };
})();
