/* Websockets of the console: each message is a whole state and is acknowledged. The server is heard from every few seconds in any
   case, so a connection that closes or falls silent is lost: what the page shows is as old as `asOf` says, and the connection is
   opened again, sooner at first and later with pauses. A page that nobody looks at for a while closes its connection.

   States: connecting, connected, reconnecting (lost), paused, gone (the server has no such thing, or the page cannot show it: it has
   to be loaded anew).
   Each change of one is a `console:connection` event of the document. */
"use strict";

class ConsoleSocket {
  static SESSION_ENDED = 4401;
  static GONE = 4404;
  static FIRST_PAUSE_MS = 300;
  static LONGEST_PAUSE_MS = 8000;
  static HIDDEN_MS = 120000;
  static SILENT_MS = 10000; /* webapp/push.py: BEAT_S */
  static all = new Set();

  constructor(path, { message, state = () => {}, ageMs = 0 }) {
    this.path = path;
    this.onMessage = message;
    this.onState = state;
    this.pause = ConsoleSocket.FIRST_PAUSE_MS;
    this.state = "connecting";
    this.asOf = Date.now() - ageMs;
    ConsoleSocket.all.add(this);
    document.addEventListener("visibilitychange", () => this.visibility());
    window.addEventListener("online", () => this.again(0));
    this.open();
  }

  open() {
    if (this.closed || this.socket || this.hidden) return;
    const scheme = location.protocol === "https:" ? "wss:" : "ws:";
    const path = typeof this.path === "function" ? this.path() : this.path;
    const socket = new WebSocket(`${scheme}//${location.host}${path}`);
    this.socket = socket;
    this.heardAt = Date.now();
    socket.onmessage = (event) => this.hear(JSON.parse(event.data));
    socket.onclose = (event) => this.lose(event.code);
  }

  hear(message) {
    this.heardAt = Date.now();
    if (message.type === "beat") {
      if (!this.tellsAge) this.asOf = this.heardAt;
      return;
    }
    this.pause = ConsoleSocket.FIRST_PAUSE_MS;
    try {
      this.onMessage(message, this);
      this.tellsAge = message.age_ms !== undefined;
      this.asOf = this.heardAt - (message.age_ms || 0);
      this.become("connected");
    } catch (error) {
      this.become("gone"); /* what cannot be shown is not followed */
      throw error;
    } finally {
      this.send({ type: "ack", seq: message.seq });
    }
  }

  lose(code) {
    this.drop();
    if (this.closed) return;
    if (code === ConsoleSocket.SESSION_ENDED) return ConsoleSocket.toLogin();
    if (code === ConsoleSocket.GONE) {
      this.closed = true;
      return this.become("gone");
    }
    this.become("reconnecting");
    this.again(this.pause);
    this.pause = Math.min(this.pause * 2, ConsoleSocket.LONGEST_PAUSE_MS);
    if (code === 1006) this.checkSession();
  }

  /* Leave the connection, also one whose other end does not answer. */
  drop() {
    const socket = this.socket;
    this.socket = null;
    if (!socket) return;
    socket.onmessage = null;
    socket.onclose = null;
    socket.close();
  }

  become(state) {
    if (this.state === state) return;
    this.state = state;
    this.onState(state);
    document.dispatchEvent(new CustomEvent("console:connection"));
  }

  send(message) {
    if (this.socket && this.socket.readyState === WebSocket.OPEN) this.socket.send(JSON.stringify(message));
  }

  again(after) {
    clearTimeout(this.timer);
    this.timer = setTimeout(() => this.open(), after + Math.random() * 0.3 * after);
  }

  /* The address changed, as when a filter was typed. */
  restart() {
    this.drop();
    this.again(0);
  }

  close() {
    this.closed = true;
    clearTimeout(this.timer);
    this.drop();
    ConsoleSocket.all.delete(this);
    document.dispatchEvent(new CustomEvent("console:connection"));
  }

  visibility() {
    clearTimeout(this.hiding);
    if (document.hidden) {
      this.hiding = setTimeout(() => {
        this.hidden = true;
        this.drop();
        if (!this.closed) this.become("paused");
      }, ConsoleSocket.HIDDEN_MS);
    } else if (this.hidden) {
      this.hidden = false;
      this.again(0);
    }
  }

  /* Called every second: nobody says when a network is gone or a server hangs. */
  static watch() {
    for (const each of ConsoleSocket.all) {
      if (each.socket && Date.now() - each.heardAt > ConsoleSocket.SILENT_MS) each.lose(1006);
    }
  }

  /* A refused handshake does not say why; the API does. */
  async checkSession() {
    try {
      const answer = await fetch("/api/v1/users/me", {
        headers: { Accept: "application/json" },
        signal: AbortSignal.timeout(ConsoleSocket.SILENT_MS),
      });
      if (answer.status === 401) ConsoleSocket.toLogin();
    } catch {
      /* the server is away; opening again goes on */
    }
  }

  static toLogin() {
    location.assign(`/login?next=${encodeURIComponent(location.pathname + location.search)}`);
  }
}
