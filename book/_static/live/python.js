// Live cells: the page's end of the worker that runs Python (worker.js). One worker a page; to stop it is to end it.
lnLive.python = (() => {
  const { code, version, lite } = lnLive;
  let worker, starting, ready, jobs = [];  // jobs: what runs, and what waits for it
  let watch = () => {};

  const begin = async () => {
    ready = false;
    const address = `${code}worker.js${version}`;
    worker = lnLive.disk ? await lnLive.disk(address) : new Worker(address);
    worker.postMessage({ start: { code, version, lite } });
    worker.onerror = (event) => fail(event.message ?? "no answer");
    worker.onmessage = ({ data: { told, id, data } }) => {
      const job = jobs.find((j) => j.id === id);
      if (told === "ready") ready = true;
      if (told === "failed") fail(data);
      else if (told === "loading" || told === "ready") watch(told, data);
      else if (told === "done") {
        jobs = jobs.filter((j) => j !== job);
        job?.end(data);
      } else job?.hear(told, data);
    };
  };
  const fail = (reason) => stop({ failed: `Python could not be loaded (${reason}). Is the connection gone? `
    + "Press Run to try again, or take the notebook at the top of the page." });
  const stop = (why) => {
    worker?.terminate();
    worker = starting = undefined;
    ready = false;
    watch(why.failed ? "failed" : "stopped", why.failed);
    jobs.splice(0).forEach((job) => job.end(why));
  };
  return {
    /** Load Python; ``heard`` is told "loading" with {what, bytes, of}, then "ready", or "failed" with the reason. */
    start: (heard) => { watch = heard; return starting ??= begin(); },
    /** Run; ``hear(kind, data)`` is told what comes out, ``end({ok} | {stopped} | {failed})`` how it ended. */
    run: (job) => { jobs.push(job); worker.postMessage({ run: job.run, id: job.id }); },
    stop: () => stop({ stopped: true }),
    ready: () => ready,
  };
})();
