// The receivers of alerts: what each was sent, and what was held back and why.

import { h } from "../core/dom.js";
import { formatCount } from "../core/format.js";

/** What became of an event -> words, in the order in which they are told. The first ones are never left out. */
const OUTCOMES = [
  ["sent", "sent"],
  ["retries", "tried again"],
  ["refused", "refused by the receiver"],
  ["given_up", "given up after an hour"],
  ["unsure", "may have been lost in a crash"],
  ["muted", "muted"],
  ["not_yet", "waiting to be escalated"],
  ["acknowledged_before", "acknowledged before it was escalated"],
  ["no_route", "no route leads here"],
  ["below_min_severity", "below its least severity"],
  ["grouped", "counted in a summary"],
  ["known", "known there already"],
  ["summaries", "summaries"],
  ["follows_cause", "followed from another"],
  ["in_train", "one of a train"],
  ["info_only", "information only"],
];
const BAD = new Set(["refused", "given_up", "unsure"]);

/** A receiver's counts in words: `[text, isBad]`, without those that nobody asks about (duplicates, unchanged). */
export const outcomes = (counts) =>
  OUTCOMES.filter(([name]) => counts[name]).map(([name, words]) => [
    `${formatCount(counts[name])} ${words}`,
    BAD.has(name),
  ]);

const SETTINGS = [
  ["Slack with buttons", "STABILITY_SLACK_BOT_TOKEN, STABILITY_SLACK_APP_TOKEN and STABILITY_SLACK_CHANNEL"],
  ["Slack, messages only", "STABILITY_SLACK_WEBHOOK_URL"],
  ["PagerDuty", "STABILITY_PAGERDUTY_ROUTING_KEY"],
  ["Alertmanager", "STABILITY_ALERTMANAGER_URL"],
  ["a signed webhook", "STABILITY_WEBHOOK_URL and STABILITY_WEBHOOK_SECRET"],
  ["mail, Teams, Discord, ntfy and the rest", "STABILITY_APPRISE_URLS"],
];

function none() {
  return h(
    "div.empty",
    h("p", "No receiver is set up: nobody is alerted. Set one of these where the server starts, and restart it:"),
    h(
      "ul",
      SETTINGS.map(([name, variable]) => h("li", `${name}: `, h("code", variable))),
    ),
  );
}

/** The table of receivers. */
export function receiversOf({ receivers }) {
  if (!receivers.length) return none();
  return h(
    "table.table",
    h("thead", h("tr", ...["Receiver", "Channel", "Least severity", "Alerts"].map((one) => h("th", one)))),
    h(
      "tbody",
      receivers.map((one) => {
        const words = outcomes(one.counts);
        return h(
          "tr",
          { data: { receiver: one.name } },
          h("td", h("strong", one.name)),
          h("td", one.channel),
          h("td", one.min_severity),
          h(
            "td",
            words.length
              ? words.flatMap(([text, bad], at) => [
                  at ? " · " : "",
                  h("span", { class: bad ? "text-critical" : "" }, text),
                ])
              : h("span.sub", "none since the server started"),
          ),
        );
      }),
    ),
  );
}
