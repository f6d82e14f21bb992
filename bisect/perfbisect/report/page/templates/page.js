"use strict";

// The theme: the system's, light, or dark. A file opened from a disk may have no storage; then the choice is not kept.
(() => {
  const button = document.getElementById("theme");
  const themes = ["system", "light", "dark"];
  const kept = { get() { try { return localStorage.getItem("theme"); } catch { return null; } },
                 set(value) { try { localStorage.setItem("theme", value); } catch { /* not kept */ } } };
  const use = (theme) => {
    if (theme === "system") document.documentElement.removeAttribute("data-theme");
    else document.documentElement.setAttribute("data-theme", theme);
    button.textContent = `Theme: ${theme}`;
  };
  let theme = themes.includes(kept.get()) ? kept.get() : "system";
  use(theme);
  button.hidden = false;
  button.addEventListener("click", () => {
    theme = themes[(themes.indexOf(theme) + 1) % themes.length];
    use(theme);
    kept.set(theme);
  });
})();

// Commands can be copied where the browser allows it.
for (const button of document.querySelectorAll(".copy")) {
  if (!navigator.clipboard) break;
  button.hidden = false;
  button.addEventListener("click", async () => {
    try {
      await navigator.clipboard.writeText(button.previousElementSibling.textContent);
      button.textContent = "Copied";
    } catch {
      getSelection().selectAllChildren(button.previousElementSibling);
    }
  });
}

// What is folded is printed, too; a link into a folded file unfolds it.
addEventListener("beforeprint", () => document.querySelectorAll("details").forEach((one) => { one.open = true; }));
const unfold = () => {
  const target = location.hash && document.getElementById(decodeURIComponent(location.hash.slice(1)));
  const folded = target && target.closest("details");
  if (folded && !folded.open) { folded.open = true; target.scrollIntoView(); }
};
addEventListener("hashchange", unfold);
// A change is shown from the function on that the table before it, and the reason, name first.
for (const diff of document.querySelectorAll(".diff")) {
  const link = diff.closest("section").previousElementSibling?.querySelector(".functions a");
  const first = link && document.querySelector(link.getAttribute("href"));
  if (first) diff.scrollTop = first.getBoundingClientRect().top - diff.getBoundingClientRect().top - 5 * first.offsetHeight;
}
unfold();

// What is wider than its place can be scrolled by keys.
for (const box of document.querySelectorAll(".scroll")) if (box.scrollWidth > box.clientWidth) box.tabIndex = 0;

// Rows of the index that contain all words.
for (const field of document.querySelectorAll("input.filter")) {
  const rows = [...document.querySelectorAll(".listing tbody tr")];
  field.hidden = false;
  field.addEventListener("input", () => {
    const words = field.value.toLowerCase().split(/\s+/).filter(Boolean);
    for (const row of rows) row.hidden = !words.every((word) => row.textContent.toLowerCase().includes(word));
  });
}

// Flame graphs. Each frame carries its depth and its widths (culprit, parent); frames are in depth-first order.
class Flame {
  constructor(section) {
    this.section = section;
    this.graph = section.querySelector(".graph");
    this.svg = section.querySelector("svg.flame");
    this.status = section.querySelector(".status");
    this.search = section.querySelector("input[type=search]");
    this.resetButton = section.querySelector(".reset");
    this.frames = [...section.querySelectorAll("svg.f")].map((element) => ({
      element,
      depth: Number(element.dataset.d),
      widths: element.dataset.w.split(" ").map(Number),
      about: element.querySelector("title").textContent,
      name: element.querySelector("title").textContent.split(": ")[0].toLowerCase(),
    }));
    const above = [];
    for (const frame of this.frames) {
      frame.caller = above[frame.depth - 1] || null;
      frame.calls = [];
      if (frame.caller) frame.caller.calls.push(frame);
      above[frame.depth] = frame;
    }
    this.view = 0;
    this.root = this.zoomed = this.current = this.frames[0];
    this.listen();
    section.querySelector(".tools").hidden = false;
    this.layOut();
  }

  listen() {
    for (const frame of this.frames) frame.element.addEventListener("click", () => { this.point(frame); this.zoom(frame); });
    this.svg.addEventListener("mousemove", (event) => {
      const hit = event.target.closest("svg.f");
      const frame = hit && this.frames.find((one) => one.element === hit);
      if (frame) this.say(frame.about);
    });
    this.svg.addEventListener("mouseleave", () => this.say(this.found || this.current.about));
    this.section.querySelectorAll(".view").forEach((button, view, all) => button.addEventListener("click", () => {
      this.view = view;
      all.forEach((one) => one.setAttribute("aria-pressed", String(one === button)));
      if (!this.zoomed.widths[view]) this.zoomed = this.root;
      this.layOut();
    }));
    this.resetButton.addEventListener("click", () => { this.zoom(this.root); this.graph.focus(); });
    this.search.addEventListener("input", () => this.find(this.search.value));
    this.search.addEventListener("keydown", (event) => {
      if (event.key !== "Escape") return;
      this.search.value = "";
      this.find("");
      this.graph.focus();
    });
    this.graph.addEventListener("keydown", (event) => this.key(event));
  }

  // Positions for the present view and zoom.
  layOut() {
    const begins = [0];
    for (const frame of this.frames) {
      frame.left = begins[frame.depth] || 0;
      frame.width = frame.widths[this.view];
      begins[frame.depth] = frame.left + frame.width;
      begins[frame.depth + 1] = frame.left;
    }
    const { left, width } = this.zoomed;
    for (const frame of this.frames) {
      const from = Math.max(0, (frame.left - left) / width);
      const to = Math.min(1, (frame.left + frame.width - left) / width);
      const seen = frame.width > 0 && to - from > 0.0002;
      frame.seen = seen;
      frame.element.setAttribute("display", seen ? "inline" : "none");
      if (!seen) continue;
      frame.element.setAttribute("x", `${(100 * from).toFixed(3)}%`);
      frame.element.setAttribute("width", `${(100 * (to - from)).toFixed(3)}%`);
    }
    this.resetButton.disabled = this.zoomed === this.root;
  }

  zoom(frame) {
    this.zoomed = frame;
    this.layOut();
    this.point(frame);
  }

  point(frame) {
    this.current.element.classList.remove("current");
    this.current = frame;
    frame.element.classList.add("current");
    this.say(frame.about);
  }

  say(text) { this.status.textContent = text; }

  // Frames whose names contain the text; the share is of those not called by another of them.
  find(text) {
    const wanted = text.trim().toLowerCase();
    this.svg.classList.toggle("searching", wanted !== "");
    let count = 0, cost = 0;
    for (const frame of this.frames) {
      frame.match = wanted !== "" && frame.name.includes(wanted);
      frame.inside = frame.match || Boolean(frame.caller && frame.caller.inside);
      frame.element.classList.toggle("match", frame.match);
      count += frame.match;
      if (frame.match && !(frame.caller && frame.caller.inside)) cost += frame.widths[this.view];
    }
    const share = (100 * cost / this.root.widths[this.view]).toFixed(1);
    this.found = wanted && `${count} ${count === 1 ? "frame" : "frames"}, ${share} % of the width.`;
    this.say(this.found || this.current.about);
  }

  key(event) {
    const seen = (frames) => frames.filter((one) => one.seen);
    const beside = this.current.caller ? seen(this.current.caller.calls) : [this.current];
    const place = beside.indexOf(this.current);
    const moves = {
      ArrowDown: () => seen(this.current.calls).sort((one, other) => other.width - one.width)[0],
      ArrowUp: () => this.current.caller,
      ArrowLeft: () => beside[place - 1],
      ArrowRight: () => beside[place + 1],
      Home: () => this.root,
    };
    if (event.ctrlKey || event.metaKey || event.altKey) return;
    if (event.key in moves) {
      const to = moves[event.key]();
      if (to) { this.point(to); to.element.scrollIntoView({ block: "nearest", inline: "nearest", behavior: "instant" }); }
    } else if (event.key === "Enter" || event.key === " ") this.zoom(this.current);
    else if (event.key === "Escape" || event.key === "Backspace") this.zoom(event.key === "Escape" ? this.root : this.zoomed.caller || this.root);
    else return;
    event.preventDefault();
  }
}
const flames = [...document.querySelectorAll(".flames")].map((section) => new Flame(section));
addEventListener("keydown", (event) => {
  if (event.key !== "/" || event.target.closest("input") || !flames.length) return;
  event.preventDefault();
  flames[0].search.focus();
});
