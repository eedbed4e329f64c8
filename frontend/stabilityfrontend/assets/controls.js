// Controls that pages share: a choice from a list, a slider for smoothing, and the page's address as its memory.
(function () {
  "use strict";
  const S = (window.stability = window.stability || {});
  /** Positions of the slider: 0 is off, then evenly in the count of points that the average looks back over. */
  const POSITIONS = 100;
  /** At the end of the slider the weight is 1 - 10^-4: an average over ten thousand points. */
  const DECADES = 4;

  /** The smoothing weight of a slider's position: half-way is 0.99, about a hundred points. */
  S.smoothWeight = (position) =>
    position <= 0 ? 0 : Number((1 - 10 ** ((-DECADES * position) / POSITIONS)).toFixed(position > 50 ? 5 : 3));
  S.smoothPosition = (weight) =>
    weight <= 0 ? 0 : Math.max(1, Math.min(POSITIONS, Math.round((-POSITIONS * Math.log10(1 - weight)) / DECADES)));

  /** A choice from a list. `options` of what it returns: `[{value, text}]`, with `group` for a heading; `bare`: no label beside it. */
  S.choice = function (place, id, label, pick, bare) {
    const select = S.h("select", {
      id,
      class: "choice-list",
      "aria-label": label,
      on: { change: () => pick(select.value) },
    });
    S.fill(place, bare ? null : S.h("label", { class: "tool-label", for: id }, label), select);
    let key = "";
    return {
      options(list, value) {
        const now = JSON.stringify(list);
        if (now !== key && document.activeElement !== select) {
          key = now;
          const groups = new Map();
          const parts = [];
          for (const { value: one, text, group } of list) {
            const option = S.h("option", { value: one }, text);
            if (!group) parts.push(option);
            else {
              if (!groups.has(group)) {
                groups.set(group, S.h("optgroup", { label: group }));
                parts.push(groups.get(group));
              }
              groups.get(group).append(option);
            }
          }
          S.fill(select, parts);
        }
        if (select.value !== value) select.value = value;
      },
    };
  };

  /** A slider for the weight of an exponential moving average. Returns what sets it without being heard. */
  S.smoothing = function (place, id, pick) {
    const words = S.h("output", { class: "tool-value", for: id });
    const slider = S.h("input", {
      id,
      type: "range",
      min: 0,
      max: POSITIONS,
      step: 1,
      value: 0,
      "aria-label": "Smoothing",
    });
    const show = () => {
      const weight = S.smoothWeight(Number(slider.value));
      S.text(words, weight ? String(weight) : "off");
      slider.title = weight
        ? `Exponential moving average with weight ${weight}, about ${S.count(1 / (1 - weight))} points, over every point that was logged; the line itself stays behind it`
        : "No smoothing";
      slider.style.setProperty("--share", `${(100 * slider.value) / POSITIONS}%`);
    };
    slider.addEventListener("input", () => {
      show();
      pick(S.smoothWeight(Number(slider.value)));
    });
    S.fill(place, S.h("label", { class: "tool-label", for: id }, "Smoothing"), slider, words);
    show();
    return (weight) => {
      slider.value = S.smoothPosition(weight);
      show();
    };
  };

  /** Keep something in the page's address: null takes it out. A link then shows the same view. */
  S.remember = function (entries) {
    const query = new URLSearchParams(location.search);
    for (const [key, value] of Object.entries(entries)) {
      query.delete(key);
      for (const one of Array.isArray(value) ? value : [value])
        if (one !== null && one !== undefined && one !== "") query.append(key, one);
    }
    const search = query.toString().replaceAll("%2F", "/");
    if (`?${search}` !== location.search && (search || location.search))
      history.replaceState(history.state, "", `${location.pathname}${search ? `?${search}` : ""}`);
  };
})();
