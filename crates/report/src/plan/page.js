"use strict";
// Finding: what has the words in its description stays bright.
const boxes = [...document.querySelectorAll("svg rect > title")].map((title) => title.parentNode);
document.getElementById("find").addEventListener("input", (event) => {
  const words = event.target.value.trim().toLowerCase();
  for (const svg of document.querySelectorAll("svg")) svg.classList.toggle("dims", words !== "");
  for (const box of boxes) {
    box.classList.toggle("found", words !== "" && box.textContent.toLowerCase().includes(words));
  }
});
// Enlarging: the wheel about the pointer, dragging to move, a double click for all.
for (const svg of document.querySelectorAll("svg")) {
  const whole = svg.getAttribute("viewBox");
  const view = () => svg.getAttribute("viewBox").split(" ").map(Number);
  const at = (event) => {
    const place = svg.getBoundingClientRect();
    return [(event.clientX - place.left) / place.width, (event.clientY - place.top) / place.height];
  };
  const show = (x, y, width, height) => {
    const [, , most, tall] = whole.split(" ").map(Number);
    const inside = (value, length, all) => Math.min(Math.max(value, 0), all - length);
    svg.setAttribute("viewBox", [inside(x, width, most), inside(y, height, tall), width, height].join(" "));
  };
  svg.addEventListener("wheel", (event) => {
    const [x, y, width, height] = view();
    const [, , most] = whole.split(" ").map(Number);
    const by = Math.min(event.deltaY > 0 ? 1.25 : 0.8, most / width);
    if (by === 1 || (event.deltaY > 0 && width >= most)) return;
    event.preventDefault();
    const [across, down] = at(event);
    show(x + across * width * (1 - by), y + down * height * (1 - by), width * by, height * by);
  }, { passive: false });
  let from = null;
  svg.addEventListener("pointerdown", (event) => { from = [...at(event), ...view()]; });
  svg.addEventListener("pointerup", () => { from = null; });
  svg.addEventListener("pointerleave", () => { from = null; });
  svg.addEventListener("pointermove", (event) => {
    if (!from) return;
    const [across, down, x, y, width, height] = from;
    const [now, low] = at(event);
    show(x + (across - now) * width, y + (down - low) * height, width, height);
  });
  svg.addEventListener("dblclick", () => svg.setAttribute("viewBox", whole));
}
