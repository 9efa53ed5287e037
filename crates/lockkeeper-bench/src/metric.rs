//! What the names of metrics mean: their unit, which way is better, and whether a change for the worse is a
//! regression.

/// Which way a metric is better.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Better {
    /// More is.
    Higher,
    /// Less is.
    Lower,
    /// Neither: it explains the others.
    Neither,
}

/// One metric.
#[derive(Clone, Copy, Debug)]
pub struct Metric {
    /// Its name in result files.
    pub name: &'static str,
    /// Which way is better.
    pub better: Better,
    /// Whether a change for the worse past the threshold is a regression. Waits are not judged: their ends
    /// swing by tens of percent between runs of the same program.
    pub is_judged: bool,
}

const fn metric(name: &'static str, better: Better, is_judged: bool) -> Metric {
    Metric {
        name,
        better,
        is_judged,
    }
}

/// All metrics, in the order in which comparisons list them.
pub const METRICS: &[Metric] = &[
    metric("per_process_ops", Better::Higher, true),
    metric("per_thread_ops", Better::Higher, true),
    metric("scalability", Better::Higher, false),
    metric("least_served", Better::Higher, false),
    metric("checks_per_second", Better::Higher, true),
    metric("deadlock_found", Better::Higher, true),
    metric("time_to_last_ns", Better::Lower, true),
    metric("wake_ups_per_release", Better::Lower, false),
    metric("wait_p50_ns", Better::Lower, false),
    metric("wait_p99_ns", Better::Lower, false),
    metric("wait_max_ns", Better::Lower, false),
    metric("writer_wait_max_ns", Better::Lower, false),
    metric("writer_grants_per_second", Better::Higher, false),
    metric("breaks_per_second", Better::Higher, false),
    metric("user_time", Better::Neither, false),
    metric("system_time", Better::Neither, false),
    metric("voluntary_context_switches", Better::Neither, false),
    metric("involuntary_context_switches", Better::Neither, false),
];
