/* Times in the zone that the person chose, as the server writes them. */
"use strict";

const Times = (() => {
  const zone = document.body.dataset.zone || "UTC";
  const parts = new Intl.DateTimeFormat("sv-SE", {
    timeZone: zone, year: "numeric", month: "2-digit", day: "2-digit", hour: "2-digit", minute: "2-digit", second: "2-digit",
  });
  return { zone, text: (ms) => parts.format(new Date(ms)) };
})();
