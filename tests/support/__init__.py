"""What tests of more than one folder share, one job a file; ``from support.waiting import wait_until`` in every test.

Frames and jobs without a process: `job_frames`, `job_stories`, `relaunched_jobs`, `eventful_run`,
    `gpu_events`, `bad_events`, `watched_job`, `stalled_job`, `checkpoints`, `stored_incident`.
Parts of the product on a real Redis: `manager_stack` (run manager), `gateway_stack` (gateway), `server_stack` (whole
    server), `checked_answers` (what it answers is what it declares), `incident_stream` (what alerting reads),
    `cli_program`, `plain_redis`, `imported_run`.
Real processes: `processes` (server and ranks), `nvml` (a libnvidia-ml.so.1 whose GPUs tests break).
Of stored points, with models to compare with: `points`. Of the client and its agent: `agent`.
Waiting and the machine: `waiting`, `ports`, `installed`.
"""
