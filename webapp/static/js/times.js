/* Moments as the server shows them (webapp/display.py): in the zone that the person chose, as `time` elements of two forms. */
"use strict";

const Times = (() => {
  const zone = document.body.dataset.zone || "UTC";
  const parts = new Intl.DateTimeFormat("sv-SE", {
    timeZone: zone, year: "numeric", month: "2-digit", day: "2-digit", hour: "2-digit", minute: "2-digit", second: "2-digit",
  });
  const weekday = new Intl.DateTimeFormat("en-GB", { timeZone: zone, weekday: "short" });

  /* Let a time element show another moment, to the millisecond or to the minute. */
  function show(place, ms, { toMinute = false } = {}) {
    const moment = new Date(ms);
    const utc = moment.toISOString();
    const text = parts.format(moment);
    const rest = utc.slice(19, 23);
    place.dateTime = utc;
    place.title = `${weekday.format(moment)} ${text}${rest} ${zone}`;
    if (toMinute) {
      place.textContent = text.slice(0, 16);
      return place;
    }
    const milliseconds = document.createElement("span");
    milliseconds.className = "ms";
    milliseconds.textContent = rest;
    place.replaceChildren(text, milliseconds);
    return place;
  }

  return { zone, show, element: (ms, form) => show(document.createElement("time"), ms, form) };
})();
