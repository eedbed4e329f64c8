import assert from "node:assert/strict";
import { test } from "node:test";
import { wantedPage } from "../../frontend/stabilityfrontend/assets/login/login_page.js";

const OURS = "https://board.example:8443";

test("after a login comes the page that was wanted", () => {
  for (const page of ["/", "/runs", "/runs/r-1?x=loss&view=all"])
    assert.equal(wantedPage(`?next=${encodeURIComponent(page)}`, OURS), OURS + page);
  assert.equal(wantedPage("", OURS), `${OURS}/`);
});

test("no address leads away from this server, whatever a browser makes of it", () => {
  const away = ["//evil.example", "/\\evil.example", "\\\\evil.example", "/\t/evil.example", "/\n/evil.example"];
  away.push("https://evil.example", "javascript:alert(1)", "data:text/html,x", "https://board.example/", "http://[");
  for (const page of away) assert.equal(wantedPage(`?next=${encodeURIComponent(page)}`, OURS), `${OURS}/`, page);
  assert.equal(wantedPage("?next=%2F.%2F%2Fevil.example", OURS), `${OURS}//evil.example`);
});
