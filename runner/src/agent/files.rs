//! Files: what is done at once, and the beginning of what takes longer.
//!
//! Programs may have put anything under a path: pipes and devices that block a process that opens them, links, names that are no text.

use std::fs;
use std::io::{self, Read as _};

use isolator_runner::wire::agent::{Answer, Failure, MessageKind, PIECE, Request, StreamEnd, cost};

use super::describe::entry;
use super::listing::Listing;
use super::opening::{open, resolve};
use super::removal::{self, Removal};
use super::streams::{Stream, Work};
use super::watching::Watching;
use super::writing::Writing;
use super::{Agent, failure};

impl Agent {
    /// Begins a call about files. Returns its answer, and its stream if it has one.
    pub(super) fn files(
        &mut self,
        call: u32,
        request: Request,
    ) -> Result<(Answer, Option<Stream>), Failure> {
        let path = |path: &str| resolve(&self.home, path);
        let failed = |error: io::Error| failure(&error);
        let stream = |answer, work, credit| Ok((answer, Some(Stream::new(work, credit))));
        match request {
            Request::Stat(named) => {
                let entry = entry(&path(&named), &mut self.users).map_err(failed)?;
                Ok((Answer::Entry(entry), None))
            }
            Request::MakeFolder(named) => {
                let path = path(&named);
                let is_there = path.is_dir();
                if !is_there {
                    fs::create_dir_all(&path).map_err(failed)?;
                }
                let entry = entry(&path, &mut self.users).map_err(failed)?;
                Ok((Answer::Folder(entry, !is_there), None))
            }
            Request::Rename(from, to) => {
                let (from, to) = (path(&from), path(&to));
                fs::symlink_metadata(&from).map_err(failed)?;
                if let Some(folder) = to.parent() {
                    fs::create_dir_all(folder).map_err(failed)?;
                }
                fs::rename(&from, &to).map_err(failed)?;
                Ok((Answer::Entry(entry(&to, &mut self.users).map_err(failed)?), None))
            }
            Request::List(named, depth, credit) => {
                let listing = Listing::begin(path(&named), depth).map_err(failed)?;
                stream(Answer::Done, Work::List(listing, None), credit)
            }
            Request::Read(named, credit) => {
                let file = open(&path(&named))?;
                let size = file.metadata().map_err(failed)?.len();
                stream(Answer::Size(size), Work::Read(file), credit)
            }
            Request::Write(named) => {
                let writing = Writing::begin(path(&named), call)?;
                stream(Answer::Done, Work::Write(writing), 0)
            }
            Request::Watch(named, recursive, credit) => {
                let is_watch = |stream: &&Stream| matches!(stream.work, Work::Watch(_));
                let others = self.streams.values().filter(is_watch).count();
                let watching = Watching::begin(path(&named), recursive, others)?;
                stream(Answer::Done, Work::Watch(watching), credit)
            }
            // The others are not about files, or were taken before.
            _ => Err(Failure::System(libc::EINVAL)),
        }
    }

    /// Begins to remove something. Its call is answered when it is gone.
    pub(super) fn remove(&mut self, call: u32, path: &str) {
        match Removal::begin(&resolve(&self.home, path)) {
            Ok(None) => self.channel.answer(call, &Ok(Answer::Done)),
            Ok(Some(removal)) => {
                self.streams.insert(call, Stream::new(Work::Remove(removal), 0));
            }
            Err(error) => self.channel.answer(call, &Err(failure(&error))),
        }
    }

    /// Takes bytes for a file that is written.
    pub(super) fn data(&mut self, call: u32, bytes: &[u8]) {
        let Some(Stream { work: Work::Write(writing), .. }) = self.streams.get_mut(&call) else {
            return;
        };
        if let Err(error) = writing.write(bytes) {
            self.streams.remove(&call);
            self.channel.end(call, &StreamEnd::Failed(failure(&error)));
        }
    }

    /// Gives a file that was written its name.
    pub(super) fn finish(&mut self, call: u32) {
        let Some(Stream { work: Work::Write(writing), .. }) = self.streams.remove(&call) else {
            return;
        };
        let finished = writing.finish().and_then(|path| entry(&path, &mut self.users));
        let answer = finished.map(Answer::Entry).map_err(|error| failure(&error));
        let is_done = answer.is_ok();
        self.channel.answer(call, &answer);
        if is_done {
            self.channel.end(call, &StreamEnd::Complete);
        }
    }

    /// Does a step of a stream.
    pub(super) fn go_on(&mut self, call: u32) {
        let Self { streams, channel, users, .. } = self;
        let Some(stream) = streams.get_mut(&call) else { return };
        let credit = stream.credit;
        let mut fits = |body: usize| {
            stream.needs = cost(body);
            stream.needs <= credit
        };
        let end = match &mut stream.work {
            Work::Process | Work::Write(_) => None,
            Work::Read(file) => {
                let room = (credit.saturating_sub(cost(0)) as usize).min(PIECE);
                let mut buffer = [0; PIECE];
                match file.read(&mut buffer[..room]) {
                    Ok(0) => Some(StreamEnd::Complete),
                    Ok(count) => {
                        stream.say(MessageKind::Content, call, &buffer[..count], channel);
                        None
                    }
                    Err(error) if error.kind() == io::ErrorKind::Interrupted => None,
                    Err(error) => Some(StreamEnd::Failed(failure(&error))),
                }
            }
            Work::Processes(list) => match list.front().map(serde_json::to_vec) {
                None => Some(StreamEnd::Complete),
                Some(Ok(body)) if fits(body.len()) => {
                    list.pop_front();
                    stream.say(MessageKind::Process, call, &body, channel);
                    None
                }
                // It waits for credit.
                Some(Ok(_)) => None,
                Some(Err(_)) => list.pop_front().and(None),
            },
            Work::List(listing, waiting) => {
                match waiting.take().map_or_else(|| listing.next(users), |entry| Ok(Some(entry))) {
                    Ok(None) => Some(StreamEnd::Complete),
                    Ok(Some(entry)) => {
                        let body = serde_json::to_vec(&entry).unwrap_or_default();
                        if fits(body.len()) {
                            stream.say(MessageKind::Entry, call, &body, channel);
                        } else {
                            *waiting = Some(entry);
                        }
                        None
                    }
                    Err(failure) => Some(StreamEnd::Failed(failure)),
                }
            }
            Work::Remove(removal) => match removal.step() {
                Ok(removal::Step::More) => None,
                Ok(removal::Step::Done) => {
                    channel.answer(call, &Ok(Answer::Done));
                    streams.remove(&call);
                    return;
                }
                Err(error) => {
                    channel.answer(call, &Err(failure(&error)));
                    streams.remove(&call);
                    return;
                }
            },
            Work::Watch(watching) => match watching.next(fits) {
                Ok(Some(body)) => {
                    stream.say(MessageKind::Event, call, &body, channel);
                    None
                }
                Ok(None) => None,
                Err(failure) => Some(StreamEnd::Failed(failure)),
            },
        };
        if let Some(end) = end {
            streams.remove(&call);
            channel.end(call, &end);
        }
    }
}
