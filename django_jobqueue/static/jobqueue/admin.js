// Runs a large operation while its page is open, in requests of about a second.
"use strict";
{
    const show = (name, text) => {
        const element = document.querySelector(`[data-jq="${name}"]`);
        if (element) element.textContent = text;
    };
    const advance = async section => {
        const token = section.querySelector("[name=csrfmiddlewaretoken]").value;
        const answer = await fetch(section.dataset.jqAdvance, {
            method: "POST",
            headers: {"X-CSRFToken": token, "Accept": "application/json"},
        });
        if (!answer.ok) throw new Error(`status ${answer.status}`);
        const reached = await answer.json();
        section.querySelector('[data-jq="percent"]').value = reached.percent;
        show("percent-text", `${reached.percent} %`);
        show("moved", reached.moved);
        show("refused", reached.refused);
        return reached.state === "running";
    };
    const runToEnd = async section => {
        const problem = section.querySelector('[data-jq="problem"]');
        let failures = 0;
        for (;;) {
            try {
                if (!await advance(section)) break;
                failures = 0;
                problem.classList.add("hidden");
            } catch {
                failures += 1;
                problem.classList.remove("hidden");
                if (failures > 5) return;
                await new Promise(done => setTimeout(done, 1000 * failures));
            }
        }
        window.location.reload();
    };
    document.addEventListener("DOMContentLoaded", () => {
        const section = document.querySelector("[data-jq-operation][data-jq-running]");
        if (section) runToEnd(section);
    });
}
