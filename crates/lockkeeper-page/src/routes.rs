//! What there is to ask for: the page, its events, and the metrics.

use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::extract::{Query, State};
use axum::http::{StatusCode, header};
use axum::middleware;
use axum::response::sse::{Event, Sse};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use futures_util::stream::{self, Stream};
use lockkeeper_watch::metrics;
use lockkeeper_watch::report::Report;
use tokio::sync::watch;

use crate::document;
use crate::guard::{Guard, guard};
use crate::sampler::{Sampler, Viewer};
use crate::source::{FileId, Watched};
use crate::view::{Timeline, View, Wanted};

/// How long nobody is asked again who asks too much.
const TRY_AGAIN: &str = "5";

#[derive(Clone)]
struct Shared {
    sampler: Arc<Sampler>,
    most_viewers: usize,
}

/// Everything, behind the guard.
pub fn router(sampler: Arc<Sampler>, keeper: Guard, most_viewers: usize) -> Router {
    let shared = Shared {
        sampler,
        most_viewers,
    };
    Router::new()
        .route("/", get(async || document::page()))
        .route("/events", get(events))
        .route("/metrics", get(numbers))
        .fallback(async || {
            (
                StatusCode::NOT_FOUND,
                "404: there is /, /events and /metrics.\n",
            )
        })
        .with_state(shared)
        .layer(middleware::from_fn_with_state(Arc::new(keeper), guard))
}

/// The numbers, in Prometheus' text form.
async fn numbers(State(shared): State<Shared>) -> Response {
    let source = shared.sampler.source.clone();
    match tokio::task::spawn_blocking(move || metrics::render(&source.report())).await {
        Ok(text) => ([(header::CONTENT_TYPE, metrics::CONTENT_TYPE)], text).into_response(),
        Err(_) => StatusCode::INTERNAL_SERVER_ERROR.into_response(),
    }
}

/// What one client sees, again and again.
async fn events(State(shared): State<Shared>, Query(wanted): Query<Wanted>) -> Response {
    if shared.sampler.viewers() >= shared.most_viewers {
        return (
            StatusCode::SERVICE_UNAVAILABLE,
            [(header::RETRY_AFTER, TRY_AGAIN)],
            "503: too many pages are open.\n",
        )
            .into_response();
    }
    Sse::new(views(&shared.sampler, wanted)).into_response()
}

/// A client, and what he has been told.
struct Client {
    sampler: Arc<Sampler>,
    seen: watch::Receiver<Option<Arc<Report>>>,
    wanted: Arc<Wanted>,
    watched: Option<(FileId, Box<dyn Watched>)>,
    /// The number of the next sample that he has not got; `None` if he has got none.
    next_sample: Option<u64>,
    _viewer: Viewer,
}

fn views(
    sampler: &Arc<Sampler>,
    wanted: Wanted,
) -> impl Stream<Item = Result<Event, Infallible>> + use<> {
    let (viewer, mut seen) = sampler.look();
    // What was seen last is news to who has just come.
    seen.mark_changed();
    let watched = wanted.file().map(|file| (file, sampler.source.watch(file)));
    let client = Client {
        sampler: sampler.clone(),
        seen,
        wanted: Arc::new(wanted),
        watched,
        next_sample: None,
        _viewer: viewer,
    };
    stream::unfold(client, async |mut client| {
        let event = client.next().await?;
        Some((Ok(event), client))
    })
}

impl Client {
    async fn next(&mut self) -> Option<Event> {
        let report = loop {
            self.seen.changed().await.ok()?;
            if let Some(report) = self.seen.borrow_and_update().clone() {
                break report;
            }
        };
        let first = self.next_sample.is_none();
        let (samples, next_sample) = self.sampler.history_since(self.next_sample.unwrap_or(0));
        self.next_sample = Some(next_sample);
        let timeline = self.watched.as_ref().map(|(_, watched)| {
            let (now, spans) = watched.spans();
            Timeline::new(now, spans)
        });
        let wanted = self.wanted.clone();
        let made = tokio::task::spawn_blocking(move || {
            let view = View::new(&report, &wanted, timeline, samples, first);
            serde_json::to_string(&view)
        });
        match made.await {
            Ok(Ok(text)) => Some(Event::default().event("view").data(text)),
            _ => {
                tracing::error!("cannot make a view of the locks");
                tokio::time::sleep(Duration::from_secs(1)).await;
                Some(Event::default().comment("no view"))
            }
        }
    }
}
