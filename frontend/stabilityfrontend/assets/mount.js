// Brings a page to life when Dash has put its skeleton there, and ends the one before.
(function () {
  "use strict";
  const S = (window.stability = window.stability || {});
  const kinds = {
    runs: "RunsPage",
    login: "LoginPage",
    compare: "ComparePage",
    incident: "IncidentPage",
    fleet: "FleetPage",
  };
  let current = null;
  let waiting = 0;

  /** Go to another page of ours without loading everything again: Dash listens to the history. */
  S.go = function (href) {
    history.pushState({}, "", href);
    window.dispatchEvent(new PopStateEvent("popstate"));
    window.scrollTo(0, 0);
  };

  document.addEventListener("click", (event) => {
    const toggle = event.target.closest("#theme-toggle");
    if (toggle) S.theme.toggle();
    const link = event.target.closest("a[href^='/']");
    if (
      !link ||
      event.defaultPrevented ||
      event.button !== 0 ||
      event.metaKey ||
      event.ctrlKey ||
      event.shiftKey ||
      link.target
    )
      return;
    event.preventDefault();
    S.go(link.getAttribute("href"));
  });

  function open(config) {
    const root = document.querySelector("#page > .page");
    // React may need a frame more to put the skeleton there; two seconds are a hundred times what that takes.
    if (!root || root === (current && current.root)) {
      if (waiting < 120) {
        waiting += 1;
        requestAnimationFrame(() => open(config));
      }
      return;
    }
    if (current) current.page.close();
    current = null;
    const Page = root.dataset.page ? S[kinds[root.dataset.page]] : S.RunPage;
    if (root.dataset.run === undefined) document.title = "Stabilityboard";
    const page = Page ? new Page(root, config) : { close() {} };
    current = { root, page };
    // For the console and for tests: what is open now.
    S.page = page;
    if (root.dataset.page !== "login") S.showMe();
  }

  window.dash_clientside = window.dash_clientside || {};
  window.dash_clientside.stability = {
    /** The skeleton of an address for Dash to put there; as soon as it stands, it comes to life. */
    show(pathname, skeletons, config) {
      waiting = 0;
      requestAnimationFrame(() => open(config));
      return S.route(pathname, skeletons);
    },
  };
})();
