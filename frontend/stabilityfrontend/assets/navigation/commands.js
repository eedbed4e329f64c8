// What the search over everything can do on the page that is open: each presses the button that is there for it.

import { toast } from "../core/dom.js";
import { colorTheme } from "../core/theme.js";
import { showKeys } from "./keys.js";

/** `find`: buttons, the first that can be pressed is meant. `also`: other words for it. */
const BUTTONS = [
  {
    words: "Roll back …",
    also: "rollback go back revert",
    find: "#rollback-open, #incident-rollback, [data-do='rollback']",
  },
  {
    words: "Undo the newest rollback …",
    also: "return branch",
    find: "#rollback-undo, [data-return], [data-do='undo']",
  },
  { words: "What changed since the last good run", also: "difference config commit", find: "#about-fold" },
  { words: "Restart the job …", also: "restart kill", find: "#incident-restart" },
  { words: "Acknowledge the incident", also: "ack", find: "#incident-ack" },
  { words: "Acknowledge what is chosen", also: "ack incidents", find: "#incidents-ack" },
  { words: "Dump stacks now", also: "stacks trace", find: "#incident-dump" },
  { words: "Show the batches", also: "samples data", find: "#incident-show-batches" },
  { words: "Checkpoint now", also: "save state", find: "#checkpoint-open" },
  { words: "Stop training …", also: "end kill", find: "#stop-open" },
  { words: "Run a task …", also: "task plug-in", find: "#task-open" },
  { words: "Detectors", also: "settings sensitivity thresholds quieter", find: "#detectors-open" },
  { words: "Half as sensitive", also: "quieter detector fewer alerts sensitivity", find: "#quieter-half" },
  { words: "Mute the detector in this run", also: "quieter fewer alerts sensitivity", find: "#quieter-mute" },
  { words: "Fewer alerts like the newest …", also: "reduce alerts mute quieter sensitivity", find: "[data-less]" },
  { words: "End the zoom", also: "reset zoom", find: "#zoom-reset" },
  { words: "Log out", also: "leave", find: "#log-out" },
];

async function copyAddress() {
  try {
    await navigator.clipboard.writeText(location.href);
    toast("The address of this page is copied.", "good");
  } catch {
    toast("The browser did not let the page copy.", "warning");
  }
}

const ALWAYS = [
  { words: "Switch between dark and light", also: "theme colours", run: () => colorTheme.toggle() },
  { words: "All keys", also: "keyboard shortcuts help", run: showKeys },
  { words: "Copy the address of this page", also: "link share", run: copyAddress },
];

/** What is in a menu can be pressed where the menu could be opened. */
const canBePressed = (element) => {
  const menu = element.closest("[popover]");
  const seen = menu ? document.querySelector(`[popovertarget="${menu.id}"]`) : element;
  return !element.matches(":disabled") && (seen?.checkVisibility?.({ visibilityProperty: true }) ?? true);
};

/** What can be done now: `{words, also, of, run}`; `of`: the run in a list that it is done to, the one with the focus. */
export function commands() {
  const focused = document.activeElement?.closest("tr");
  const here = BUTTONS.flatMap(({ words, also, find }) => {
    const every = /** @type {HTMLElement[]} */ ([...document.querySelectorAll(find)]).filter(canBePressed);
    const button = every.find((one) => focused?.contains(one)) || every[0];
    const of = button?.closest("tr")?.querySelector(".run-link")?.textContent || "";
    return button ? [{ words, also, of, run: () => button.click() }] : [];
  });
  return [...here, ...ALWAYS];
}
