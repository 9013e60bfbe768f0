/* Websockets of the console: each message is a whole state and is acknowledged; a lost connection is opened again, sooner at
   first and later with pauses; a page that nobody looks at for a while closes its connection and says that it is paused. */
"use strict";

class ConsoleSocket {
  static SESSION_ENDED = 4401;
  static GONE = 4404;
  static FIRST_PAUSE_MS = 300;
  static LONGEST_PAUSE_MS = 8000;
  static HIDDEN_MS = 120000;

  constructor(path, { message, state = () => {} }) {
    this.path = path;
    this.onMessage = message;
    this.onState = state;
    this.pause = ConsoleSocket.FIRST_PAUSE_MS;
    this.closed = false;
    document.addEventListener("visibilitychange", () => this.visibility());
    window.addEventListener("online", () => this.again(0));
    this.open();
  }

  open() {
    if (this.closed || this.socket) return;
    const scheme = location.protocol === "https:" ? "wss:" : "ws:";
    const path = typeof this.path === "function" ? this.path() : this.path;
    const socket = new WebSocket(`${scheme}//${location.host}${path}`);
    this.socket = socket;
    socket.onmessage = (event) => {
      const message = JSON.parse(event.data);
      this.pause = ConsoleSocket.FIRST_PAUSE_MS;
      this.onState("connected");
      try {
        this.onMessage(message, this);
      } finally {
        this.send({ type: "ack", seq: message.seq });
      }
    };
    socket.onclose = (event) => {
      if (this.socket === socket) this.socket = null;
      if (this.closed) return;
      if (event.code === ConsoleSocket.SESSION_ENDED) return ConsoleSocket.toLogin();
      if (event.code === ConsoleSocket.GONE) return this.close();
      if (this.hidden) return this.onState("paused");
      this.onState("reconnecting");
      this.again(this.pause);
      this.pause = Math.min(this.pause * 2, ConsoleSocket.LONGEST_PAUSE_MS);
      if (event.code === 1006) this.checkSession();
    };
  }

  send(message) {
    if (this.socket && this.socket.readyState === WebSocket.OPEN) this.socket.send(JSON.stringify(message));
  }

  again(after) {
    clearTimeout(this.timer);
    this.timer = setTimeout(() => this.open(), after + Math.random() * 0.3 * after);
  }

  restart() {
    if (this.socket) this.socket.close();
    this.again(0);
  }

  close() {
    this.closed = true;
    clearTimeout(this.timer);
    if (this.socket) this.socket.close();
  }

  visibility() {
    clearTimeout(this.hiding);
    if (document.hidden) {
      this.hiding = setTimeout(() => {
        this.hidden = true;
        if (this.socket) this.socket.close();
      }, ConsoleSocket.HIDDEN_MS);
    } else if (this.hidden) {
      this.hidden = false;
      this.onState("reconnecting");
      this.again(0);
    }
  }

  /* A refused handshake does not say why; the API does. */
  async checkSession() {
    try {
      const answer = await fetch("/api/v1/users/me", { headers: { Accept: "application/json" } });
      if (answer.status === 401) ConsoleSocket.toLogin();
    } catch {
      /* the server is away; opening again goes on */
    }
  }

  static toLogin() {
    location.assign(`/login?next=${encodeURIComponent(location.pathname + location.search)}`);
  }
}
