// A bell beside the buttons of a live run: whoever turns it on gets a message of their own browser
// when an alarm is raised, also while the tab is hidden. The browser asks for leave first, and keeps
// the choice. What the message says are the alarm's name and the run's, as text.

import { place } from "./pulse.js";

const KEPT = "echoscope-bell";
const OFF = "Get a message of this browser when an alarm is raised";
const ON = "This browser tells you when an alarm is raised. Press to turn that off";
const REFUSED = "This browser allows no messages from this page; its settings can change that";
const MISSING = "This browser gives messages only to pages on localhost or behind https";

const SVG = "http://www.w3.org/2000/svg";
const BELL = "M12 4a5 5 0 0 0-5 5v4l-2 3h14l-2-3V9a5 5 0 0 0-5-5zM10 19a2 2 0 0 0 4 0";
const CROSSED = BELL + "M5 4l14 16";

const canTell = () => "Notification" in window && isSecureContext;
const isOn = () => canTell() && Notification.permission === "granted"
  && localStorage.getItem(KEPT) === "on";

class Bell {
  constructor(parent) {
    this.button = document.createElement("button");
    this.button.type = "button";
    this.button.className = "es-bell";
    this.button.addEventListener("click", () => this.turn());
    const picture = document.createElementNS(SVG, "svg");
    picture.setAttribute("viewBox", "0 0 24 24");
    picture.setAttribute("aria-hidden", "true");
    this.line = document.createElementNS(SVG, "path");
    picture.append(this.line);
    this.button.append(picture);
    parent.append(this.button);
  }

  take({ run, alarm }) {
    this.run = run;
    this.alarm ??= alarm;
    this.show();
  }

  show() {
    const isRefused = canTell() && Notification.permission === "denied";
    const words = !canTell() ? MISSING : isRefused ? REFUSED : isOn() ? ON : OFF;
    this.line.setAttribute("d", isOn() ? BELL : CROSSED);
    this.button.title = words;
    this.button.setAttribute("aria-label", words);
    this.button.setAttribute("aria-pressed", String(isOn()));
    this.button.disabled = !canTell() || isRefused;
  }

  async turn() {
    const next = isOn() ? "off" : "on";
    if (next === "on") await Notification.requestPermission();
    localStorage.setItem(KEPT, next);
    this.show();
  }

  hear(pulse) {
    const alarm = pulse.lines?.alarm?.text;
    if (alarm === undefined || alarm === this.alarm) return;
    this.alarm = alarm;
    if (!alarm || !isOn()) return;
    const message = new Notification(`Alarm: ${alarm}`, { body: this.run, tag: this.run });
    message.addEventListener("click", () => { window.focus(); message.close(); });
  }
}

// Streamlit calls this for the place on the page.

export default function bell({ data, parentElement }) {
  const given = JSON.parse(data);
  const [shown, end] = place(parentElement, () => new Bell(parentElement), given);
  shown.take(given);
  return end;
}
