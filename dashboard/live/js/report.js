// Draws the charts of a report, which is one file without a server: it unpacks plotly's script from the
// page, then each figure, which stands in a script element as JSON.

const dark = matchMedia('(prefers-color-scheme: dark)').matches;
const ink = dark ? '#c9ced6' : '#3c434d', line = 'rgba(127,127,127,0.25)';
const holders = document.querySelectorAll('.chart');
async function unpack(element) {
  const packed = Uint8Array.from(atob(element.textContent), (sign) => sign.charCodeAt(0));
  const stream = new Blob([packed]).stream().pipeThrough(new DecompressionStream('gzip'));
  const script = document.createElement('script');
  script.textContent = await new Response(stream).text();
  document.head.append(script);
}
function draw(element, n) {
  const figure = JSON.parse(element.textContent), layout = figure.layout;
  layout.template = undefined;
  layout.paper_bgcolor = layout.plot_bgcolor = 'rgba(0,0,0,0)';
  layout.font = Object.assign({}, layout.font, {color: ink});
  layout.autosize = true;
  for (const key of Object.keys(layout)) {
    if (/^[xy]axis/.test(key)) Object.assign(layout[key], {gridcolor: line, automargin: true});
  }
  Plotly.newPlot(holders[n], figure.data, layout, {responsive: true, displaylogo: false,
    toImageButtonOptions: {format: 'svg'}});
}
unpack(document.getElementById('plotly')).then(
  () => document.querySelectorAll('script.figure').forEach(draw),
  () => holders.forEach((holder) => {
    holder.textContent = 'This browser cannot unpack the charts: open the file in a newer one.';
  }));
