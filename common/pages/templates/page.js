// Draws the charts of the page, in the colours of the reader's system theme.
const dark = matchMedia("(prefers-color-scheme: dark)");
const swap = JSON.parse(document.getElementById("dark-colours").textContent);

async function draw(box) {
  const text = box.querySelector("script").textContent;
  const spec = JSON.parse(dark.matches ? text.replace(/#[0-9a-f]{6}\b/g, c => swap[c] || c) : text);
  if (box.clientWidth < 480) spec.config.legend.columns = 2;
  try {
    box.classList.add("drawn");  // first, so that the chart can measure its place
    const shown = await vegaEmbed(box.querySelector(".live"), spec, {
      renderer: "svg", ast: true, tooltip: {theme: dark.matches ? "dark" : "light"},
      actions: {export: {svg: true, png: true}, source: false, compiled: false, editor: false},
      downloadFileName: box.dataset.name,
    });
    box.view = shown.view;
  } catch (error) {
    box.classList.remove("drawn");  // keep the static picture
    console.error(error);
  }
}

const drawAll = () => document.querySelectorAll(".chart").forEach(draw);
drawAll();
dark.addEventListener("change", drawAll);
addEventListener("beforeprint", () => document.querySelectorAll("details").forEach(d => { d.open = true; }));
