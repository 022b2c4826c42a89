// Keeps the first page up to date, and says so: "live, 11:32:05". A small request asks every few seconds whether
// something changed; then the page is drawn again in place, so that focus and open elements stay. When the server does
// not answer, or the session has ended, the page says since when its figures are old, and looks it.
"use strict";
{
    const PULSE_MS = 3000, LONGEST_MS = 60000; // between two questions: usually, and after many failures
    const DRAW_MS = 5000, REST = 20; // at most so often is the page drawn again, and for a 20th of the time,
    const OLDEST_MS = 60000; // but at least so often, because ages and waiting jobs change without a pulse
    const PATIENCE_MS = 8000; // for an answer
    const SILENT_MS = 15000; // without an answer (the computer slept), the figures are not called live any more

    class Ended extends Error {} // the session, or the permission

    const ask = async (url, type) => {
        const answer = await fetch(url, {
            headers: {"Accept": type, "X-Requested-With": "XMLHttpRequest"},
            cache: "no-store",
            redirect: "manual", // to the login page
            signal: AbortSignal.timeout(PATIENCE_MS),
        });
        if (answer.type === "opaqueredirect" || answer.status === 401 || answer.status === 403) throw new Ended();
        if (!answer.ok || !(answer.headers.get("Content-Type") || "").startsWith(type)) throw new Error(answer.status);
        return answer;
    };

    // Makes an element equal to a fresh one. Rows are matched by their names, so that a focused button never becomes
    // the button of another row; what a reader has opened stays open.
    const update = (old, fresh) => {
        for (const {name} of [...old.attributes]) {
            if (!fresh.hasAttribute(name) && name !== "open") old.removeAttribute(name);
        }
        for (const {name, value} of fresh.attributes) {
            if (old.getAttribute(name) !== value) old.setAttribute(name, value);
        }
        if (old.hasAttribute("data-jq-chart") && old.classList.contains("jq-drawn")) return;
        const rows = new Map();
        for (const child of old.children) if (child.dataset.jqRow) rows.set(child.dataset.jqRow, child);
        let place = old.firstChild;
        for (const child of [...fresh.childNodes]) {
            const name = child.dataset?.jqRow;
            const same = name ? rows.get(name) : place && !place.dataset?.jqRow && place.nodeName === child.nodeName ? place : null;
            if (!same) {
                old.insertBefore(child, place);
                continue;
            }
            if (same === place) place = place.nextSibling;
            else old.insertBefore(same, place); // which moves it
            if (same.nodeType === Node.ELEMENT_NODE) update(same, child);
            else if (same.data !== child.data) same.data = child.data;
        }
        while (place) {
            const next = place.nextSibling;
            place.remove();
            place = next;
        }
    };

    class Overview {
        constructor(root) {
            this.root = root;
            this.body = root.querySelector("[data-jq-body]");
            this.text = root.querySelector("[data-jq-live]");
            this.note = root.querySelector("[data-jq-stale]");
            this.at = this.text.dataset.jqAt; // when the server last answered, by its clock
            this.heard = this.drawn = Date.now();
            this.failures = this.took = 0;
            this.isStale = this.isAsking = false;
            this.timer = 0;
            this.note.querySelector("[data-jq-try]").addEventListener("click", () => this.turn());
            this.note.querySelector("[data-jq-login]").href = window.location.href;
            // A page that was hidden, or comes back by "Back", or lost the network, has old figures until it has asked.
            document.addEventListener("visibilitychange", () => document.hidden || this.wake());
            window.addEventListener("pageshow", event => event.persisted && this.wake());
            window.addEventListener("online", () => this.wake());
            window.addEventListener("offline", () => this.lose("gone"));
            setInterval(() => {
                if (!this.isStale && Date.now() - this.heard > SILENT_MS) this.wake();
            }, 1000);
            this.show();
            this.wait(PULSE_MS);
        }

        get mark() {
            return this.body.querySelector("[data-jq-pulse]")?.dataset.jqPulse;
        }

        wake() {
            if (Date.now() - this.heard > SILENT_MS) this.lose("gone");
            this.turn();
        }

        wait(ms) {
            clearTimeout(this.timer);
            this.timer = setTimeout(() => this.turn(), ms);
        }

        async turn() {
            if (this.isAsking || document.hidden) return;
            this.isAsking = true;
            try {
                await this.refresh();
                this.failures = 0;
                this.isStale = false;
                this.show();
            } catch (error) {
                this.failures += 1;
                this.lose(error instanceof Ended ? "ended" : "gone");
            } finally {
                this.isAsking = false;
                this.wait(Math.min(PULSE_MS * 2 ** this.failures, LONGEST_MS));
            }
        }

        async refresh() {
            const query = window.location.search;
            const beat = await (await ask(this.root.dataset.jqPulseUrl + query, "application/json")).json();
            const age = Date.now() - this.drawn;
            const isNew = beat.pulse !== this.mark && age >= Math.max(DRAW_MS, REST * this.took);
            if (this.isStale || isNew || age >= OLDEST_MS) {
                const begun = Date.now();
                const text = await (await ask(this.root.dataset.jqBodyUrl + query, "text/html")).text();
                const fresh = new DOMParser().parseFromString(`<div>${text}</div>`, "text/html").body.firstChild;
                update(this.body.firstElementChild, fresh.firstElementChild);
                this.drawn = Date.now();
                this.took = this.drawn - begun;
                window.dispatchEvent(new Event("jq-drawn"));
            }
            this.heard = Date.now();
            this.at = beat.at;
            const running = this.body.querySelector("[data-jq=running]");
            if (running && running.textContent !== beat.running) running.textContent = beat.running;
        }

        lose(how) {
            this.isStale = true;
            this.how = how;
            this.show();
        }

        show() {
            this.root.classList.toggle("jq-is-stale", this.isStale);
            this.note.classList.toggle("hidden", !this.isStale);
            if (!this.isStale) {
                this.text.textContent = this.text.dataset.jqLiveText.replace("%s", this.at);
                return;
            }
            const said = this.note.dataset[this.how === "ended" ? "jqEnded" : "jqGone"].replace("%s", this.at);
            const shown = this.note.querySelector("[data-jq-stale-text]");
            if (shown.textContent !== said) shown.textContent = said;
            this.text.textContent = this.at;
            this.note.querySelector("[data-jq-login]").classList.toggle("hidden", this.how !== "ended");
        }
    }

    document.addEventListener("DOMContentLoaded", () => {
        const root = document.querySelector("[data-jq-overview]");
        if (root) new Overview(root);
        const choose = document.querySelector("[data-jq-choose]");
        choose?.addEventListener("input", event => {
            const names = [...choose.querySelectorAll("option")].map(option => option.value);
            // Only a choice from the list replaces the whole text; typing goes on until Enter.
            if (event.inputType === "insertReplacementText" || (!event.inputType && names.includes(event.target.value))) choose.requestSubmit();
        });
    });
}
