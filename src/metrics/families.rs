//! The families of metrics: their names, descriptions and values.

use std::fmt;

use isolator_pool::counts::{self, CALL_FAILURES, Count, Times};
use isolator_pool::pool::Start;
use isolator_pool::pool::counts::{Failure, PoolCounts, STAGES};
use isolator_pool::run::outcome::Status;
use prometheus_client::encoding::DescriptorEncoder;
use prometheus_client::metrics::MetricType;

use super::encode::{Families, Labels};
use super::sources::Sources;
use super::waiting::{Memory, template_bytes};

/// Writes all families.
pub(super) fn write(
    encoder: DescriptorEncoder<'_>,
    sources: &Sources,
    memory: &Memory,
    began: f64,
) -> fmt::Result {
    let mut families = Families(encoder);
    of_calls(&mut families, sources)?;
    of_executions(&mut families, sources)?;
    of_pools(&mut families, sources, memory)?;
    of_sessions(&mut families, sources)?;
    of_packages(&mut families, sources)?;
    of_results(&mut families, sources)?;
    of_engine(&mut families)?;
    of_audit(&mut families, sources)?;
    of_reloads(&mut families, sources)?;
    of_traces(&mut families, sources)?;
    of_process(&mut families, sources, began)
}

/// The answers to clients.
fn of_calls(families: &mut Families<'_>, sources: &Sources) -> fmt::Result {
    let kinds = sources.operations.kinds().map(|kind| {
        let labels = [
            ("mcp_method_name", kind.method),
            ("gen_ai_tool_name", kind.tool),
            ("error_type", kind.error_type),
        ];
        (labels, kind.times)
    });
    families.histograms(
        "mcp_server_operation_duration_seconds",
        "How long requests of clients took, from the whole message to the answer.",
        kinds,
    )?;
    let requests = sources.operations.requests().kinds();
    let statuses: Vec<_> = requests.iter().map(|(kind, _)| kind.status.to_string()).collect();
    let kinds = requests.iter().zip(&statuses).map(|((kind, times), status)| {
        let labels = [
            ("http_request_method", kind.method),
            ("http_route", kind.route),
            ("http_response_status_code", status.as_str()),
        ];
        (labels, &**times)
    });
    families.histograms(
        "http_server_request_duration_seconds",
        "How long requests of APIs took, from their head to that of the answer.",
        kinds,
    )
}

/// Counts of each language, by names for the elements of an array.
fn by<'a, const N: usize>(
    sources: &'a Sources,
    label: &'static str,
    names: [&'static str; N],
    counts: fn(&PoolCounts) -> &[Count; N],
) -> impl Iterator<Item = (Labels<'a, 2>, u64)> {
    sources.pools.counts().flat_map(move |(language, of_pool)| {
        let counts = counts(of_pool);
        let one = move |(name, count): (&'static str, &Count)| {
            ([("language", language), (label, name)], count.get())
        };
        names.into_iter().zip(counts).map(one)
    })
}

/// Programs, with and without an outcome.
fn of_executions(families: &mut Families<'_>, sources: &Sources) -> fmt::Result {
    let starts = Start::ALL.map(Start::as_str);
    let statuses = Status::ALL.map(Status::as_str);
    let executions = sources.pools.counts().flat_map(|(language, counts)| {
        starts.iter().zip(&counts.executions).flat_map(move |(start, of_start)| {
            let one = move |(status, count): (&'static str, &Count)| {
                ([("language", language), ("start", *start), ("status", status)], count.get())
            };
            statuses.into_iter().zip(of_start).map(one)
        })
    });
    families.counters(
        "isolator_executions",
        "Programs that have run, by how they got their sandbox and what became of them.",
        executions,
    )?;
    families.counters(
        "isolator_execution_failures",
        "Programs that got no outcome, for a reason that is not theirs.",
        by(sources, "reason", Failure::ALL.map(Failure::as_str), |counts| &counts.failures),
    )?;
    let times = sources.pools.counts().flat_map(|(language, counts)| {
        starts
            .iter()
            .zip(&counts.times)
            .filter(|(_, times)| times.count() > 0)
            .map(move |(start, times)| ([("language", language), ("start", *start)], times))
    });
    families.histograms(
        "isolator_execution_seconds",
        "How long programs took, from the arrival of the request to the last byte from the sandbox.",
        times,
    )?;
    let stages = sources.pools.counts().flat_map(|(language, counts)| {
        STAGES.iter().zip(&counts.stages).map(move |(stage, sum)| {
            ([("language", language), ("stage", *stage)], sum.get().as_secs_f64())
        })
    });
    families.counters(
        "isolator_stage_seconds",
        "Time of all programs in each stage of the receipt.",
        stages,
    )?;
    families.counters(
        "isolator_cells",
        "Cells and commands of sessions, by what became of them.",
        by(sources, "status", statuses, |counts| &counts.cells),
    )?;
    families.histograms(
        "isolator_cell_seconds",
        "How long cells took, from the arrival of the request to the last byte from the sandbox.",
        of_each(sources, |counts| &counts.cell_times),
    )
}

/// Times of each language, without those that have none.
fn of_each(
    sources: &Sources,
    times: fn(&PoolCounts) -> &Times,
) -> impl Iterator<Item = (Labels<'_, 1>, &Times)> {
    let all = sources.pools.counts().map(move |(language, counts)| (language, times(counts)));
    let some = all.filter(|(_, times)| times.count() > 0);
    some.map(|(language, times)| ([("language", language)], times))
}

/// Sandboxes, and requests that wait for them.
fn of_pools(families: &mut Families<'_>, sources: &Sources, memory: &Memory) -> fmt::Result {
    let pools = &sources.pools;
    let status = pools.status();
    let sessions = sources.sessions.by_language();
    let states = status.iter().flat_map(|(name, status)| {
        let in_use = pools.counts_of(name).map_or(0, PoolCounts::in_use);
        let sessions = sessions.get(*name).copied().unwrap_or_default();
        [
            ("hot", status.hot),
            ("paused", status.paused),
            ("making", status.making),
            ("in_use", in_use),
            ("session", sessions),
        ]
        .map(|(state, count)| ([("pool", *name), ("state", state)], count))
    });
    families.gauges("isolator_sandboxes", "Sandboxes of each pool, by what they do.", states)?;
    let wanted = status.iter().map(|(name, status)| ([("pool", *name)], status.size));
    families.gauges(
        "isolator_pool_wanted_sandboxes",
        "Sandboxes that should wait in each pool at rest.",
        wanted,
    )?;
    let least = status.iter().map(|(name, status)| ([("pool", *name)], status.sizes.least()));
    families.gauges(
        "isolator_pool_min_sandboxes",
        "The fewest sandboxes that the size of each pool can be.",
        least,
    )?;
    let most = status.iter().map(|(name, status)| ([("pool", *name)], status.sizes.most()));
    families.gauges(
        "isolator_pool_max_sandboxes",
        "The most sandboxes that the size of each pool can be.",
        most,
    )?;
    let failing = status
        .iter()
        .map(|(name, status)| ([("pool", *name)], u32::from(status.last_error.is_some())));
    families.gauges(
        "isolator_pool_failing",
        "Whether the last sandbox of each pool could not be made.",
        failing,
    )?;
    let made = pools.counts().map(|(name, counts)| ([("pool", name)], counts.made.count()));
    families.counters("isolator_sandboxes_made", "Sandboxes that were made.", made)?;
    let failed = pools.counts().map(|(name, counts)| ([("pool", name)], counts.not_made.get()));
    families.counters("isolator_sandboxes_failed", "Sandboxes that could not be made.", failed)?;
    families.counter(
        "isolator_sandboxes_removed",
        "Sandboxes that were removed.",
        pools.removed(),
    )?;
    families.gauge(
        "isolator_sandboxes_leaving",
        "Used sandboxes that are not removed yet.",
        pools.leaving(),
    )?;
    let refill = pools.counts().map(|(name, counts)| ([("pool", name)], &counts.made));
    families.histograms(
        "isolator_refill_seconds",
        "How long making a sandbox took, without what is started in it ahead.",
        refill,
    )?;
    let (running, waiting) = pools.load();
    families.gauge("isolator_running_requests", "Requests that run now.", running)?;
    families.gauge("isolator_queue_length", "Requests that wait for their turn.", waiting)?;
    families.gauge(
        "isolator_load",
        "Requests that run or wait, divided by requests.maxRunning: above 1 some wait.",
        pools.load_ratio(),
    )?;
    let shared = pools.shared_counts();
    families.single(
        "isolator_queue_wait_seconds",
        "How long requests waited for their turn.",
        MetricType::Histogram,
        &(&shared.queue).into(),
    )?;
    families.counter(
        "isolator_leaks_swept",
        "Sandboxes and other things that had no owner and were removed.",
        shared.swept.get(),
    )?;
    let waiting = memory.iter().map(|(name, memory)| ([("pool", name.as_str())], memory.sandboxes));
    families.gauges(
        "isolator_waiting_memory_bytes",
        "Proportional memory of the sandboxes that wait, at most half a minute ago.",
        waiting,
    )?;
    if let Some(bytes) = template_bytes(memory) {
        families.gauge(
            "isolator_template_memory_bytes",
            "Proportional memory of the templates, at most half a minute ago.",
            bytes,
        )?;
    }
    if let Some(templates) = pools.templates() {
        families.gauge(
            "isolator_templates",
            "Templates that are ready to be forked.",
            templates,
        )?;
    }
    Ok(())
}

fn of_sessions(families: &mut Families<'_>, sources: &Sources) -> fmt::Result {
    let counts = sources.sessions.counts();
    let rest = counts.open.saturating_sub(counts.running + counts.frozen);
    let states = [("running", counts.running), ("frozen", counts.frozen), ("idle", rest)];
    families.gauges(
        "isolator_sessions",
        "Open sessions: in which a cell runs, that are frozen, and others.",
        states.map(|(state, count)| ([("state", state)], count)),
    )?;
    families.gauge(
        "isolator_session_memory_bytes",
        "Memory of all open sessions after their last cells, or when they were frozen later.",
        counts.memory_bytes,
    )?;
    let starts = Start::ALL.map(Start::as_str);
    families.counters(
        "isolator_sessions_opened",
        "Sessions that were opened, by how they got their sandbox.",
        by(sources, "start", starts, |counts| &counts.sessions),
    )?;
    families.histograms(
        "isolator_session_open_seconds",
        "How long opening a session took, from the arrival of the request until cells could run.",
        of_each(sources, |counts| &counts.opening),
    )?;
    families.counters(
        "isolator_sessions_ended",
        "Sessions that have ended, by the reason.",
        sources.sessions.ended().map(|(reason, count)| ([("reason", reason)], count)),
    )?;
    families.counter(
        "isolator_sessions_replayed",
        "Sessions that were opened with what another one had run.",
        counts.replayed,
    )?;
    families.counter(
        "isolator_session_files_read",
        "Files of sessions, and parts of them, that clients have read.",
        counts.files_read,
    )?;
    families.counter(
        "isolator_sessions_evicted",
        "Sessions that were ended to make room or free memory.",
        counts.evicted,
    )?;
    families.counter("isolator_cells_undone", "Cells that were undone.", counts.undone_cells)?;
    let Some((written, failed)) = sources.sessions.journals().counts() else { return Ok(()) };
    families.counters(
        "isolator_journal_writes",
        "Writings of journals of sessions to their server, by what became of them.",
        [("written", written), ("failed", failed)]
            .map(|(result, count)| ([("result", result)], count)),
    )
}

fn of_packages(families: &mut Families<'_>, sources: &Sources) -> fmt::Result {
    let counts = sources.packages.counts();
    families.gauge(
        "isolator_package_sets_wanted",
        "Sets of packages that the configuration names.",
        counts.named,
    )?;
    families.gauge(
        "isolator_package_sets_ready",
        "Those of them that can be used at once.",
        counts.ready,
    )?;
    families.gauge(
        "isolator_package_sets_building",
        "Builds of sets of packages that run or wait for their turn.",
        counts.building,
    )?;
    families.gauge(
        "isolator_package_sets_in_use",
        "Sets of packages that requests use now.",
        counts.in_use,
    )?;
    families.counters(
        "isolator_package_builds",
        "Builds of sets of packages that have ended, by what became of them.",
        [("built", counts.built), ("failed", counts.failed)]
            .map(|(result, count)| ([("result", result)], count)),
    )?;
    families.counters(
        "isolator_package_installs",
        "Requests for packages by programs that run, by what became of them.",
        [("installed", counts.installs), ("refused", counts.refused_installs)]
            .map(|(result, count)| ([("result", result)], count)),
    )
}

/// Things that are kept for clients.
fn of_results(families: &mut Families<'_>, sources: &Sources) -> fmt::Result {
    let held = &sources.held;
    families.gauges(
        "isolator_results_held",
        "Results and long runs that clients can read later, and answers to calls with idempotency keys.",
        held.iter().map(|held| ([("kind", held.kind)], held.count)),
    )?;
    families.gauges(
        "isolator_results_held_bytes",
        "Their size, as it counts towards what can be kept.",
        held.iter().map(|held| ([("kind", held.kind)], held.bytes)),
    )
}

fn of_engine(families: &mut Families<'_>) -> fmt::Result {
    let calls = counts::engine_calls().map(|calls| ([("call", calls.name())], calls.ended.get()));
    families.counters("isolator_engine_calls", "Calls to the engine that have ended.", calls)?;
    let errors = counts::engine_calls().flat_map(|calls| {
        let failed = CALL_FAILURES.into_iter().zip(&calls.failed);
        failed
            .filter(|(_, count)| count.get() > 0)
            .map(|(reason, count)| ([("call", calls.name()), ("reason", reason)], count.get()))
    });
    families.counters("isolator_engine_call_errors", "Calls to the engine that failed.", errors)
}

/// The audit log, if there is one.
fn of_audit(families: &mut Families<'_>, sources: &Sources) -> fmt::Result {
    let Some(counts) = sources.audit.counts() else { return Ok(()) };
    families.counter(
        "isolator_audit_lines_written",
        "Lines that were written to the audit log.",
        counts.written,
    )?;
    families.counter(
        "isolator_audit_lines_lost",
        "Lines of the audit log that could not be written.",
        counts.lost,
    )?;
    families.gauge(
        "isolator_audit_failing",
        "Whether the audit log can't be written now.",
        u32::from(counts.is_failing),
    )
}

/// Traces, if they are exported.
fn of_traces(families: &mut Families<'_>, sources: &Sources) -> fmt::Result {
    let Some(counts) = sources.traces.counts() else { return Ok(()) };
    families.counter(
        "isolator_trace_spans_exported",
        "Spans that the collector has taken.",
        counts.exported.get(),
    )?;
    families.counter(
        "isolator_trace_spans_dropped",
        "Spans that were lost, because too many waited or the collector did not take them.",
        counts.dropped.get(),
    )
}

/// Attempts to load the configuration again.
fn of_reloads(families: &mut Families<'_>, sources: &Sources) -> fmt::Result {
    families.gauge(
        "isolator_config_last_reload_successful",
        "Whether the last attempt to load the configuration succeeded.",
        u32::from(sources.reloads.failure().is_none()),
    )?;
    families.gauge(
        "isolator_config_last_reload_success_timestamp_seconds",
        "When the configuration was loaded last, in seconds since 1970.",
        sources.reloads.last_success(),
    )
}

fn of_process(families: &mut Families<'_>, sources: &Sources, began: f64) -> fmt::Result {
    let labels = [("version", env!("CARGO_PKG_VERSION")), ("engine", sources.engine)];
    families.gauges(
        "isolator_build_info",
        "The version of the server and the kind of its engine; always 1.",
        [(labels, 1_u32)],
    )?;
    families.gauge(
        "process_start_time_seconds",
        "When the server began, in seconds since 1970.",
        began,
    )
}
