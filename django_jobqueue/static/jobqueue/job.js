// Keeps the page of a job up to date until the job has ended: asks for its pulse, and for the page when more has changed.
"use strict";
{
    const EVERY_MS = 2000;
    const PATIENCE_MS = 5000;
    const STATUS = ["on", "off", "login", "changed"];
    const part = name => document.querySelector(`[data-jq-live="${name}"]`);
    const write = (name, text) => {
        if (part(name)) part(name).textContent = text;
    };
    const show = status => {
        for (const name of STATUS) {
            if (part(name)) part(name).hidden = name !== status;
        }
    };
    const now = () => new Date().toLocaleTimeString();
    let reached = now();
    let asking = false;

    const renew = async () => {
        const content = document.getElementById("content-main");
        if (content.contains(document.activeElement)) {
            show("changed");
            return;
        }
        const answer = await fetch(window.location.href, {redirect: "manual"});
        if (!answer.ok) throw new Error(`status ${answer.status}`);
        const fresh = new DOMParser().parseFromString(await answer.text(), "text/html");
        for (const selector of ["#content h1", "#content-main"]) {
            document.querySelector(selector).replaceWith(document.adoptNode(fresh.querySelector(selector)));
        }
        document.dispatchEvent(new Event("jq:renewed"));
    };
    const ask = async () => {
        const job = document.querySelector("[data-jq-job]");
        if (!job.dataset.jqPulseUrl) return false;
        const answer = await fetch(job.dataset.jqPulseUrl, {
            headers: {"Accept": "application/json"},
            redirect: "manual",
            signal: AbortSignal.timeout(PATIENCE_MS),
        });
        if (answer.type === "opaqueredirect" || answer.status === 403) {
            show("login");
            return true;
        }
        if (answer.status === 404) {
            show("changed");
            return false;
        }
        if (!answer.ok) throw new Error(`status ${answer.status}`);
        const pulse = await answer.json();
        reached = now();
        show("on");
        write("time", reached);
        if (pulse.mark !== job.dataset.jqMark) {
            await renew();
            return true;
        }
        if (pulse.ran) write("ran", pulse.ran);
        if (pulse.progress !== null && part("progress")) {
            part("progress").value = pulse.progress;
            write("percent", pulse.percent);
            write("text", pulse.text);
        }
        return true;
    };
    const beat = async timer => {
        if (asking || document.hidden) return;
        asking = true;
        try {
            if (!await ask()) clearInterval(timer);
        } catch {
            write("since", reached);
            show("off");
        } finally {
            asking = false;
        }
    };
    if (document.querySelector("[data-jq-job][data-jq-pulse-url]")) {
        const timer = setInterval(() => beat(timer), EVERY_MS);
        document.addEventListener("visibilitychange", () => beat(timer));
    }
}
