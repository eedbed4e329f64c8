// What the server draws of plain HTML goes into the page past Dash.

import assert from "node:assert/strict";
import test from "node:test";

import { attributes, isHtml, pauseBetween } from "../../frontend/stabilityfrontend/assets/core/parts.js";

const div = (props) => ({ namespace: "dash_html_components", type: "Div", props });

test("text, numbers and known tags are plain HTML, however deep", () => {
  assert.ok(isHtml([null, "text", 3, div({ children: [div({ id: "a", children: "b" }), null] })]));
});

test("a component of another package, a pattern id, a script or a number as a style is left to Dash", () => {
  assert.ok(!isHtml(div({ children: [{ namespace: "dash_ag_grid", type: "AgGrid", props: {} }] })));
  assert.ok(!isHtml(div({ id: { type: "a" } })));
  assert.ok(!isHtml({ namespace: "dash_html_components", type: "Script", props: { src: "/x.js" } }));
  assert.ok(!isHtml(div({ style: { height: 3 } })));
});

test("properties of Dash become attributes of HTML", () => {
  const given = { className: "a b", colSpan: 2, n_clicks: 0, children: "x", "data-x": 1, style: { fontSize: "3px" } };
  assert.deepEqual(attributes(given), { class: "a b", colspan: 2, "data-x": 1, style: { "font-size": "3px" } });
});

test("a link runs nothing", () => {
  assert.deepEqual(attributes({ href: "javascript:alert(1)" }), {});
  assert.deepEqual(attributes({ href: " javascript:alert(1)" }), {});
  assert.deepEqual(attributes({ href: "?from=1" }), { href: "?from=1" });
});

test("the last rows of a run that has just ended are drawn before it is drawn less often", () => {
  assert.equal(pauseBetween(false, 0), 0);
  assert.equal(pauseBetween(true, 30_000), 0);
  assert.ok(pauseBetween(true, 61_000) >= 60_000);
});
