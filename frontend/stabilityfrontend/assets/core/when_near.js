// What is fetched for a part of a page only once it comes near what is seen: a first load waits for nothing out of sight.

/** How far below the window a part is near, pixels. */
const NEAR_PX = 100;

export class WhenNear {
  /** @param {Element} element @param {() => void} fetch */
  constructor(element, fetch) {
    this.fetch = fetch;
    this.near = this.wanted = false;
    this.seen = new IntersectionObserver(
      (entries) => {
        if (this.near || !entries.some((entry) => entry.isIntersecting)) return;
        this.close();
        this.near = true;
        if (this.wanted) fetch();
      },
      { rootMargin: `${NEAR_PX}px` },
    );
    this.seen.observe(element);
  }

  /** Fetch now if the part has been near, else when it comes. */
  ask() {
    this.wanted = true;
    if (this.near) this.fetch();
  }

  close() {
    this.seen.disconnect();
  }
}
