// What tests and benchmarks read of a page of ours, as `window.stability`: all that its modules export, by name, and
// `page`, what is open. No page of ours puts anything there itself: the modules are imported here a second time, which
// gives the same ones.
(async () => {
  if (document.readyState === "loading") await new Promise((done) => addEventListener("DOMContentLoaded", done));
  const link = document.querySelector("link[rel=modulepreload]");
  if (!link || window.stability) return;
  const { modules } = await import(link.href);
  window.stability = Object.assign({}, ...Object.values(modules));
  Object.defineProperty(window.stability, "page", { get: () => modules["page_lifecycle.js"].opened.page });
})();
