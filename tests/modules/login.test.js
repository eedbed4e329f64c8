import assert from "node:assert/strict";
import { test } from "node:test";
import { api } from "../../frontend/stabilityfrontend/assets/core/api.js";
import { address } from "../../frontend/stabilityfrontend/assets/core/route.js";
import { wantedPage } from "../../frontend/stabilityfrontend/assets/pages/login_page.js";

const OURS = "https://board.example:8443";

test("after a login comes the page that was wanted", () => {
  for (const page of ["/", "/runs", "/runs/r-1?x=loss&view=all"])
    assert.equal(wantedPage(`?next=${encodeURIComponent(page)}`, OURS), page);
  assert.equal(wantedPage("", OURS), "/");
});

test("no address leads away from this server, whatever a browser makes of it", () => {
  const away = ["//evil.example", "/\\evil.example", "\\\\evil.example", "/\t/evil.example", "/\n/evil.example"];
  away.push("https://evil.example", "javascript:alert(1)", "data:text/html,x", "https://board.example/", "http://[");
  for (const page of away) assert.equal(wantedPage(`?next=${encodeURIComponent(page)}`, OURS), "/", page);
  assert.equal(address(wantedPage("?next=%2F.%2F%2Fevil.example", OURS)), "/evil.example");
});

test("who logs out goes where the logout leads, whatever is refused meanwhile", async () => {
  const went = [];
  Object.assign(globalThis, {
    location: { pathname: "/runs", search: "", assign: (where) => went.push(where) },
    fetch: async (/** @type {string} */ path) =>
      path.endsWith("/logout")
        ? Response.json({ go_to: "https://id.example/out" })
        : Response.json({ error: { code: "key_missing", message: "no key" } }, { status: 401 }),
  });
  await assert.rejects(api.me(), { status: 401 });
  assert.deepEqual(went, ["/login?next=%2Fruns"]);
  const leaving = api.logout();
  await assert.rejects(api.me(), { status: 401 });
  assert.equal((await leaving).go_to, "https://id.example/out");
  await assert.rejects(api.me(), { status: 401 });
  assert.equal(went.length, 1);
});
