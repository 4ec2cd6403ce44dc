//! The body of an upload in pieces: one file, or several as the parts of a form.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll, ready};
use std::time::Duration;

use axum::body::{Body, BodyDataStream, Bytes};
use futures_util::{Stream, StreamExt as _};

use crate::apis::e2b::data::connect::head::Encoding;
use crate::apis::e2b::data::gzip::Decompressing;
use crate::apis::e2b::error::{E2bError, ErrorKind};

/// How long the next piece of a body can take. A client may make a file while it sends it.
const SILENCE: Duration = Duration::from_secs(60);

/// Bytes that the parser of forms gets at a time.
const MAX_PIECE: usize = 64 << 10;

/// Bytes of a form that can come before the content of a file: the headers of its part, and what is left of the part before it. It is more
/// than a piece.
const MAX_HEADERS: usize = 256 << 10;

/// Bytes that the parser can look through for them: with each piece, it looks through all that it has. A form in tiny pieces would cost
/// minutes.
const MAX_SEARCHED: usize = 64 << 20;

/// Why the body of an upload can't be received.
#[derive(Debug, Clone, thiserror::Error)]
pub(super) enum UploadError {
    #[error("the body could not be received: {0}")]
    Receive(Arc<axum::Error>),
    #[error("nothing of the body came for {}", crate::duration::shown(SILENCE))]
    Silent,
    #[error("the compressed body can't be decompressed: {0}")]
    Gzip(Arc<io::Error>),
    #[error("a part of the form has no end of its headers, or they come in too many pieces")]
    Headers,
}

/// The content of a body, decompressed.
pub(super) struct Pieces {
    body: BodyDataStream,
    decompressing: Option<Decompressing>,
}

impl Pieces {
    pub(super) fn new(body: Body, encoding: Encoding) -> Self {
        let decompressing = (encoding == Encoding::Gzip).then(Decompressing::new);
        Self { body: body.into_data_stream(), decompressing }
    }

    /// The next piece; `None` at the end.
    pub(super) async fn next(&mut self) -> Option<Result<Bytes, UploadError>> {
        loop {
            if let Some(ready) = self.decompressing.as_mut().and_then(Decompressing::next) {
                return Some(ready.map_err(|error| UploadError::Gzip(Arc::new(error))));
            }
            let piece = match tokio::time::timeout(SILENCE, self.body.next()).await {
                Err(_) => return Some(Err(UploadError::Silent)),
                Ok(Some(Err(error))) => return Some(Err(UploadError::Receive(Arc::new(error)))),
                Ok(Some(Ok(piece))) => piece,
                Ok(None) => {
                    let rest = self.decompressing.take()?.finish();
                    let rest = rest.map_err(|error| UploadError::Gzip(Arc::new(error)));
                    return Some(rest).filter(|it| it.as_ref().map_or(true, |it| !it.is_empty()));
                }
            };
            match &mut self.decompressing {
                Some(decompressing) => decompressing.push(piece),
                None if piece.is_empty() => {}
                None => return Some(Ok(piece)),
            }
        }
    }

    fn into_stream(self) -> impl Stream<Item = Result<Bytes, UploadError>> + Send + use<> {
        futures_util::stream::unfold(self, |mut pieces| async move {
            pieces.next().await.map(|piece| (piece, pieces))
        })
    }
}

/// The parts of a form.
pub(super) struct Parts {
    form: multer::Multipart<'static>,
    progress: Arc<Progress>,
}

/// A file of a form.
pub(super) struct Part {
    field: multer::Field<'static>,
    progress: Arc<Progress>,
}

/// What the parser has done since it has found something.
#[derive(Default)]
struct Progress {
    /// Bytes that it was given.
    unused: AtomicUsize,
    /// Bytes that it has looked through.
    searched: AtomicUsize,
}

impl Progress {
    fn begin(&self) {
        self.unused.store(0, Ordering::Relaxed);
        self.searched.store(0, Ordering::Relaxed);
    }

    /// Counts a piece. Returns whether there can be one more.
    fn give(&self, bytes: usize) -> bool {
        let unused = self.unused.fetch_add(bytes, Ordering::Relaxed) + bytes;
        let searched = self.searched.fetch_add(unused, Ordering::Relaxed) + unused;
        unused <= MAX_HEADERS && searched <= MAX_SEARCHED
    }
}

impl Parts {
    /// For a body with this boundary between its parts.
    pub(super) fn new(pieces: Pieces, boundary: String) -> Self {
        let progress = Arc::new(Progress::default());
        let inner = Box::pin(pieces.into_stream());
        let rest = Bytes::new();
        let paced = Paced { inner, rest, progress: Arc::clone(&progress), has_just_given: false };
        Self { form: multer::Multipart::new(paced, boundary), progress }
    }

    /// The next file; `None` after the last one. Fields that are no file have no name for one.
    pub(super) async fn next(&mut self) -> Option<Result<Part, multer::Error>> {
        self.progress.begin();
        match self.form.next_field().await {
            Ok(field) => Some(Ok(Part { field: field?, progress: Arc::clone(&self.progress) })),
            Err(error) => Some(Err(error)),
        }
    }
}

impl Part {
    /// The name of the form's field.
    pub(super) fn name(&self) -> Option<&str> {
        self.field.name()
    }

    /// The name of the file, which can be a path.
    pub(super) fn file_name(&self) -> Option<&str> {
        self.field.file_name()
    }

    /// The next piece of its content; `None` at its end.
    pub(super) async fn next(&mut self) -> Option<Result<Bytes, multer::Error>> {
        self.progress.begin();
        self.field.chunk().await.transpose()
    }
}

/// The body for the parser of forms, which takes all that is there each time that it looks, and looks for the end of headers in all of it.
/// It gets one piece each time, and an error when it uses none of many.
struct Paced<S> {
    inner: Pin<Box<S>>,
    /// What was not given yet of the last piece.
    rest: Bytes,
    progress: Arc<Progress>,
    has_just_given: bool,
}

impl<S: Stream<Item = Result<Bytes, UploadError>>> Stream for Paced<S> {
    type Item = Result<Bytes, UploadError>;

    fn poll_next(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Bytes, UploadError>>> {
        if std::mem::take(&mut self.has_just_given) {
            context.waker().wake_by_ref();
            return Poll::Pending;
        }
        if self.rest.is_empty() {
            match ready!(self.inner.as_mut().poll_next(context)) {
                Some(Ok(piece)) => self.rest = piece,
                end => return Poll::Ready(end),
            }
        }
        let length = self.rest.len().min(MAX_PIECE);
        let piece = self.rest.split_to(length);
        self.has_just_given = true;
        let can_go_on = self.progress.give(length);
        Poll::Ready(Some(if can_go_on { Ok(piece) } else { Err(UploadError::Headers) }))
    }
}

impl From<UploadError> for E2bError {
    fn from(error: UploadError) -> Self {
        let kind = match error {
            UploadError::Silent => ErrorKind::TimedOut,
            _ => ErrorKind::Invalid,
        };
        Self::new(kind, error.to_string()).caused_by(error)
    }
}

/// The error of a form that can't be read.
pub(super) fn of_form(error: multer::Error) -> E2bError {
    if let multer::Error::StreamReadFailed(source) = &error
        && let Some(upload) = source.downcast_ref::<UploadError>()
    {
        return upload.clone().into();
    }
    let message = format!("the body is not a form (multipart/form-data): {error}");
    E2bError::new(ErrorKind::Invalid, message).caused_by(error)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::apis::e2b::data::gzip;

    fn pieces(sent: &[u8], size: usize, encoding: Encoding) -> Pieces {
        let chunks: Vec<_> = sent.chunks(size).map(<[u8]>::to_vec).collect();
        let stream = futures_util::stream::iter(chunks.into_iter().map(Ok::<_, io::Error>));
        Pieces::new(Body::from_stream(stream), encoding)
    }

    async fn files(sent: &[u8], size: usize) -> Result<Vec<(String, Vec<u8>)>, multer::Error> {
        let mut parts = Parts::new(pieces(sent, size, Encoding::Identity), "cut".to_owned());
        let mut files = Vec::new();
        while let Some(part) = parts.next().await {
            let mut part = part?;
            let name = part.file_name().unwrap_or_default().to_owned();
            let mut content = Vec::new();
            while let Some(piece) = part.next().await {
                content.extend_from_slice(&piece?);
            }
            files.push((name, content));
        }
        Ok(files)
    }

    fn form(files: &[(&str, &[u8])]) -> Vec<u8> {
        let mut form = Vec::new();
        for (name, content) in files {
            form.extend_from_slice(
                format!("--cut\r\nContent-Disposition: form-data; name=\"file\"; filename=\"{name}\"\r\n\r\n")
                    .as_bytes(),
            );
            form.extend_from_slice(content);
            form.extend_from_slice(b"\r\n");
        }
        form.extend_from_slice(b"--cut--\r\n");
        form
    }

    #[tokio::test]
    async fn files_of_a_form_are_the_same_however_their_bytes_arrive() {
        let large: Vec<u8> = (0..50_000_u32).map(|at| ((at * at) >> 5) as u8).collect();
        let sent =
            [("a/b c.txt", &b"one"[..]), ("é.bin", &large), ("empty", b""), ("dash", b"\r\n--cu")];
        let expected = sent.map(|(name, content)| (name.to_owned(), content.to_vec()));
        let form = form(&sent);
        for size in [1, 7, 1000, 100_000] {
            assert_eq!(files(&form, size).await.unwrap(), expected, "{size}");
        }
    }

    #[tokio::test]
    async fn forms_that_are_none_are_refused() {
        let whole = form(&[("a", b"content")]);
        for wrong in
            [&b""[..], b"no form", &whole[..40], &whole[..whole.len() - 12], b"--cut\r\nx\r\n\r\n"]
        {
            assert!(files(wrong, 10).await.is_err(), "{wrong:?}");
        }
        let endless =
            [&b"--cut\r\nContent-Disposition: "[..], &vec![b'x'; MAX_HEADERS + 1000]].concat();
        // Each piece costs a look through all before it.
        for (size, length) in [(10_000, endless.len()), (1, 20_000)] {
            let error = of_form(files(&endless[..length], size).await.unwrap_err());
            assert!(error.message().contains("no end of its headers"), "{error}");
        }
    }

    #[tokio::test]
    async fn a_compressed_body_is_decompressed() {
        let packed = gzip::compressed(b"some content");
        for size in [1, 5, 100] {
            let mut pieces = pieces(&packed, size, Encoding::Gzip);
            let mut content = Vec::new();
            while let Some(piece) = pieces.next().await {
                content.extend_from_slice(&piece.unwrap());
            }
            assert_eq!(content, b"some content");
        }
        let mut short = pieces(&packed[..packed.len() - 3], 5, Encoding::Gzip);
        let mut last = None;
        while let Some(piece) = short.next().await {
            let is_error = piece.is_err();
            last = Some(piece);
            if is_error {
                break;
            }
        }
        assert!(matches!(last, Some(Err(UploadError::Gzip(_)))));
    }

    #[tokio::test(start_paused = true)]
    async fn a_body_that_stops_is_not_waited_for() {
        let mut pieces = Pieces::new(
            Body::from_stream(futures_util::stream::pending::<io::Result<Bytes>>()),
            Encoding::Identity,
        );
        assert!(matches!(pieces.next().await, Some(Err(UploadError::Silent))));
    }
}
