//! Propagates traces through the store as W3C `traceparent`: a push records its span, and attempts continue it.

use opentelemetry::trace::{SpanContext, SpanId, TraceContextExt, TraceFlags, TraceId, TraceState};
use tracing_opentelemetry::OpenTelemetrySpanExt;

use crate::job::HeldJob;

/// Returns the `traceparent` of the current span, or `None` if there is no valid span.
pub(crate) fn current_traceparent() -> Option<String> {
    let context = tracing::Span::current().context();
    let span = context.span();
    let span = span.span_context();
    span.is_valid().then(|| format!("00-{}-{}-{:02x}", span.trace_id(), span.span_id(), span.trace_flags().to_u8()))
}

/// Returns the span of a push, with the fields that OpenTelemetry expects of a producer of messages.
pub(crate) fn push_span() -> tracing::Span {
    tracing::info_span!(
        "duly.push",
        otel.kind = "producer",
        otel.name = tracing::field::Empty,
        otel.status_code = tracing::field::Empty,
        otel.status_description = tracing::field::Empty,
        messaging.system = "duly",
        "messaging.operation.type" = "send",
        messaging.destination.name = tracing::field::Empty,
        messaging.message.id = tracing::field::Empty,
        messaging.batch.message_count = tracing::field::Empty,
    )
}

/// Returns the span of an attempt, with the fields that OpenTelemetry expects of a consumer of messages.
pub(crate) fn attempt_span(held: &HeldJob) -> tracing::Span {
    let span = tracing::info_span!(
        "duly.job",
        id = %held.job.id,
        kind = held.job.kind,
        queue = held.job.queue,
        attempt = held.attempt(),
        fence = held.fence.0,
        traceparent = held.job.traceparent,
        otel.kind = "consumer",
        otel.name = format!("process {}", held.job.queue),
        otel.status_code = tracing::field::Empty,
        otel.status_description = tracing::field::Empty,
        messaging.system = "duly",
        "messaging.operation.type" = "process",
        messaging.destination.name = held.job.queue,
        messaging.message.id = %held.job.id,
    );
    set_remote_parent(&span, held.job.traceparent.as_deref());
    span
}

/// Makes the span in `traceparent` the parent of `span`. Invalid values are ignored.
fn set_remote_parent(span: &tracing::Span, traceparent: Option<&str>) {
    if let Some(remote) = traceparent.and_then(parse_traceparent) {
        let parent = opentelemetry::Context::new().with_remote_span_context(remote);
        // Fails without an OpenTelemetry layer; then there is no trace to continue.
        let _ = span.set_parent(parent);
    }
}

fn parse_traceparent(traceparent: &str) -> Option<SpanContext> {
    let [_, trace, span, flags] = traceparent.split('-').collect::<Vec<_>>()[..] else {
        return None;
    };
    let flags = TraceFlags::new(u8::from_str_radix(flags, 16).ok()?);
    let (trace, span) = (TraceId::from_hex(trace).ok()?, SpanId::from_hex(span).ok()?);
    Some(SpanContext::new(trace, span, flags, true, TraceState::NONE)).filter(SpanContext::is_valid)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;
    use std::sync::{Arc, Mutex};

    use super::*;
    use crate::Duly;
    use crate::job::push::Push;
    use crate::sync::LockExt;
    use crate::worker::Ctx;
    use proptest::prelude::*;
    use tracing::Instrument;
    use tracing::field::{Field, Visit};
    use tracing::span::{Attributes, Id, Record};
    use tracing_subscriber::Layer;
    use tracing_subscriber::layer::{Context, SubscriberExt};

    #[test]
    fn traceparent_is_parsed() {
        let text = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";
        let span_context = parse_traceparent(text).expect("is valid");
        assert!(span_context.is_remote() && span_context.is_sampled());
        assert_eq!(format!("00-{}-{}-01", span_context.trace_id(), span_context.span_id()), text);
        assert!(parse_traceparent("00-00000000000000000000000000000000-00f067aa0ba902b7-01").is_none());
    }

    #[derive(Clone, Default)]
    struct CapturedSpans(Arc<Mutex<Vec<CapturedSpan>>>);

    struct CapturedSpan {
        id: Id,
        name: &'static str,
        fields: Fields,
    }

    #[derive(Default)]
    struct Fields(BTreeMap<&'static str, String>);

    impl Visit for Fields {
        fn record_str(&mut self, field: &Field, value: &str) {
            self.0.insert(field.name(), value.to_owned());
        }

        fn record_debug(&mut self, field: &Field, value: &dyn std::fmt::Debug) {
            self.0.insert(field.name(), format!("{value:?}"));
        }
    }

    impl<S: tracing::Subscriber> Layer<S> for CapturedSpans {
        fn on_new_span(&self, attributes: &Attributes<'_>, id: &Id, _: Context<'_, S>) {
            let mut fields = Fields::default();
            attributes.record(&mut fields);
            let name = attributes.metadata().name();
            self.0.lock_unpoisoned().push(CapturedSpan { id: id.clone(), name, fields });
        }

        fn on_record(&self, id: &Id, values: &Record<'_>, _: Context<'_, S>) {
            let mut spans = self.0.lock_unpoisoned();
            // An id is used again after its span has closed.
            let newest = spans.iter_mut().rev().find(|span| span.id == *id);
            values.record(&mut newest.expect("was created").fields);
        }
    }

    impl CapturedSpans {
        /// Asserts that the first span of this name has these fields.
        fn assert_fields(&self, span: &str, expected: &[(&str, &str)]) {
            let spans = self.0.lock_unpoisoned();
            let fields = &spans.iter().find(|captured| captured.name == span).expect("there is such a span").fields;
            for (field, value) in expected {
                assert_eq!(fields.0.get(field).map(String::as_str), Some(*value), "{span}: {field} in {:?}", fields.0);
            }
        }
    }

    #[tokio::test]
    async fn spans_have_the_fields_that_opentelemetry_expects() {
        let spans = CapturedSpans::default();
        let _guard = tracing::subscriber::set_default(tracing_subscriber::registry().with(spans.clone()));
        let duly = Duly::open(":memory:").await.expect("opens");
        let push = Push::new("mail", "{}").queue("post").max_attempts(1);
        let id = duly.push(push).await.expect("pushes").id().to_string();
        let worker = duly.worker().queue("post", 1).on_kind("mail", |_: Ctx| async { Err::<(), _>("no route") });
        assert_eq!(worker.drain().await.expect("works").buried, 1);

        let common = [
            ("messaging.system", "duly"),
            ("messaging.destination.name", "post"),
            ("messaging.message.id", id.as_str()),
        ];
        spans.assert_fields("duly.push", &common);
        let sent = [("otel.kind", "producer"), ("otel.name", "send post"), ("messaging.operation.type", "send")];
        spans.assert_fields("duly.push", &sent);
        spans.assert_fields("duly.job", &common);
        let processed =
            [("otel.kind", "consumer"), ("otel.name", "process post"), ("messaging.operation.type", "process")];
        spans.assert_fields("duly.job", &processed);
        spans.assert_fields("duly.job", &[("otel.status_code", "ERROR"), ("otel.status_description", "no route")]);
        spans.assert_fields("duly.store", &[("otel.kind", "client")]);
    }

    #[tokio::test]
    async fn span_of_a_failed_push_has_the_status_error() {
        let spans = CapturedSpans::default();
        let _guard = tracing::subscriber::set_default(tracing_subscriber::registry().with(spans.clone()));
        let duly = Duly::open(":memory:").await.expect("opens");
        duly.push(Push::new("mail", "{")).await.expect_err("is no JSON");
        spans.assert_fields("duly.push", &[("otel.status_code", "ERROR")]);
    }

    #[tokio::test]
    async fn job_continues_the_trace_of_its_push() {
        let subscriber = tracing_subscriber::registry().with(tracing_opentelemetry::layer());
        let _guard = tracing::subscriber::set_default(subscriber);
        let trace = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";
        let request = tracing::info_span!("request");
        set_remote_parent(&request, Some(trace));
        let duly = Duly::open(":memory:").await.expect("opens");
        let id = duly.push(Push::new("mail", "{}")).instrument(request).await.expect("pushes").id();
        let pushed = duly.jobs().get(id).await.expect("reads").expect("is in the store").job.traceparent;
        // Without an exporter, spans have the context of their remote parent.
        assert_eq!(pushed.as_deref(), Some(trace));
    }

    proptest! {
        #[test]
        fn any_text_parses_or_is_rejected(text in ".*") {
            let _ = parse_traceparent(&text);
        }
    }
}
