//! Who drives a connection: the one who waits for an answer, on its own thread, while nobody else does; else a task.
//!
//! What is handed to a task may have to wake a thread first, which at rest is a good part of what a request takes. Where many
//! ask at once, a task is cheaper: it sends what all of them have to say in one go.

use std::future::poll_fn;
use std::pin::{Pin, pin};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Wake, Waker};

/// How often one who waits turns before others have their turn.
const TURNS_MAX: usize = 4;

type Driver = Pin<Box<dyn Future<Output = ()> + Send>>;

/// A connection that is driven, until the last of these is dropped.
pub(crate) struct Driven(Arc<Drive>);

struct Drive {
    /// Reads and writes; gone when the connection has ended.
    driver: Mutex<Option<Driver>>,
    who: Mutex<Who>,
}

struct Who {
    /// How many wait for an answer.
    waiting: usize,
    lone: Lone,
    /// Something has come, or is to be sent, and nobody has looked at it.
    stirred: bool,
    task: Option<Waker>,
}

/// The only one who waits.
enum Lone {
    Nobody,
    /// Is at it, and looks once more before it rests.
    Turns,
    Rests(Waker),
}

impl Driven {
    /// Drives a connection from now on; on the runtime of who calls this, while nobody waits or several do.
    pub(crate) fn start(driver: impl Future<Output = ()> + Send + 'static) -> Self {
        // The first turn is the task's: nobody has asked for anything yet.
        let who = Who { waiting: 0, lone: Lone::Nobody, stirred: true, task: None };
        let drive = Arc::new(Drive { driver: Mutex::new(Some(Box::pin(driver))), who: Mutex::new(who) });
        let task = Task(drive.clone());
        tokio::spawn(async move { poll_fn(|cx| task.0.poll(cx)).await });
        Driven(drive)
    }

    /// Drives the connection along with a request that goes over it.
    pub(crate) async fn along<T>(&self, request: impl Future<Output = T>) -> T {
        let drive = &self.0;
        let mut request = pin!(request);
        let _waits = Waits::begin(drive);
        poll_fn(|cx| {
            for _ in 0..TURNS_MAX {
                drive.turns();
                if let Poll::Ready(answer) = request.as_mut().poll(cx) {
                    return Poll::Ready(answer);
                }
                if drive.rests(cx.waker()) {
                    return Poll::Pending;
                }
                drive.turn();
            }
            cx.waker().wake_by_ref();
            Poll::Pending
        })
        .await
    }
}

impl Drop for Driven {
    /// Also what is not answered ends with it.
    fn drop(&mut self) {
        self.0.end();
        self.0.wake_task();
    }
}

/// The task. A connection cannot outlive the runtime that it was made in, and ends with the task, as that does with the runtime.
struct Task(Arc<Drive>);

impl Drop for Task {
    fn drop(&mut self) {
        self.0.end();
    }
}

impl Drive {
    fn driver(&self) -> MutexGuard<'_, Option<Driver>> {
        self.driver.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The connection is closed.
    fn end(&self) {
        let ended = self.driver().take();
        drop(ended);
    }

    fn who(&self) -> MutexGuard<'_, Who> {
        self.who.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// One turn of the connection: reads what has come, sends what is to be sent.
    fn turn(self: &Arc<Self>) {
        let waker = Waker::from(self.clone());
        let mut driver = self.driver();
        let ended = driver.as_mut().is_some_and(|one| one.as_mut().poll(&mut Context::from_waker(&waker)).is_ready());
        if ended {
            *driver = None;
            drop(driver);
            self.wake_task();
        }
    }

    /// One who waits begins to turn: if it is the only one, it looks itself at what comes.
    fn turns(&self) {
        let mut who = self.who();
        if who.waiting == 1 {
            who.lone = Lone::Turns;
        }
    }

    /// Whether one who waits may rest. Not if there is something to look at, and it is the only one: then it has to.
    fn rests(&self, waker: &Waker) -> bool {
        let mut who = self.who();
        if who.waiting > 1 {
            Drive::leave_to_the_task(who);
            return true;
        }
        if std::mem::take(&mut who.stirred) {
            return false;
        }
        who.lone = Lone::Rests(waker.clone());
        true
    }

    /// Nobody looks alone any more: what nobody has looked at is for the task.
    fn leave_to_the_task(mut who: MutexGuard<'_, Who>) {
        let before = std::mem::replace(&mut who.lone, Lone::Nobody);
        let task = who.task.clone().filter(|_| who.stirred);
        // Neither under the lock: what a waker keeps alive may end with it, and ask for the lock itself.
        drop(who);
        drop(before);
        if let Some(task) = task {
            task.wake();
        }
    }

    /// The task: looks while nobody is the only one who waits, until the connection has ended.
    fn poll(self: &Arc<Self>, cx: &mut Context<'_>) -> Poll<()> {
        for _ in 0..TURNS_MAX {
            let stirred = {
                let mut who = self.who();
                who.task = Some(cx.waker().clone());
                matches!(who.lone, Lone::Nobody) && std::mem::take(&mut who.stirred)
            };
            if self.driver().is_none() {
                return Poll::Ready(());
            }
            if !stirred {
                return Poll::Pending;
            }
            self.turn();
        }
        cx.waker().wake_by_ref();
        Poll::Pending
    }

    fn wake_task(&self) {
        let task = self.who().task.take();
        if let Some(task) = task {
            task.wake();
        }
    }
}

impl Wake for Drive {
    /// There is something to look at.
    fn wake(self: Arc<Self>) {
        let waker = {
            let mut who = self.who();
            who.stirred = true;
            match &who.lone {
                Lone::Nobody => who.task.clone(),
                Lone::Turns => None,
                Lone::Rests(waker) => Some(waker.clone()),
            }
        };
        if let Some(waker) = waker {
            waker.wake();
        }
    }
}

/// Somebody who waits for an answer; ends when dropped.
struct Waits<'d>(&'d Drive);

impl<'d> Waits<'d> {
    fn begin(drive: &'d Drive) -> Self {
        let mut who = drive.who();
        who.waiting += 1;
        // From the second on the task looks; whoever turns just now notices before it rests.
        if matches!(who.lone, Lone::Rests(_)) {
            Drive::leave_to_the_task(who);
        }
        Waits(drive)
    }
}

impl Drop for Waits<'_> {
    fn drop(&mut self) {
        let mut who = self.0.who();
        who.waiting -= 1;
        Drive::leave_to_the_task(who);
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use tokio::sync::{mpsc, oneshot};

    use super::*;

    const LONG: Duration = Duration::from_secs(20);

    type Asked = (u32, oneshot::Sender<u32>);
    /// Which task has turned the connection, for each request; `None` is a caller that is no task.
    type Turned = Arc<Mutex<Vec<Option<tokio::task::Id>>>>;

    /// A connection that answers what it is asked.
    fn echo() -> (mpsc::Sender<Asked>, Driven, Turned) {
        let (ask, mut asked) = mpsc::channel::<Asked>(64);
        let turned = Turned::default();
        let by = turned.clone();
        let driver = async move {
            while let Some((number, answer)) = asked.recv().await {
                by.lock().expect("nobody panics").push(tokio::task::try_id());
                let _ = answer.send(number);
            }
        };
        (ask, Driven::start(driver), turned)
    }

    async fn ask(to: &mpsc::Sender<Asked>, number: u32) -> Option<u32> {
        let (answer, answered) = oneshot::channel();
        to.send((number, answer)).await.ok()?;
        answered.await.ok()
    }

    #[tokio::test]
    async fn who_waits_alone_drives_the_connection_itself() {
        let (to, driven, turned) = echo();
        for number in 0..10 {
            assert_eq!(driven.along(ask(&to, number)).await, Some(number));
        }
        assert_eq!(turned.lock().expect("nobody panics")[..], [None; 10], "no task did");
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn everybody_is_answered_whoever_gives_up() {
        let (to, driven, _) = echo();
        let driven = Arc::new(driven);
        let asking = (0..8u32).map(|who| {
            let (to, driven) = (to.clone(), driven.clone());
            tokio::spawn(async move {
                for number in 0..2_000 {
                    if fastrand::u32(..4) == 0 {
                        // Polled once at most.
                        let _ = tokio::time::timeout(Duration::ZERO, driven.along(ask(&to, number))).await;
                    }
                    if fastrand::u32(..50) == 0 {
                        tokio::time::sleep(Duration::from_micros(fastrand::u64(..300))).await;
                    }
                    assert_eq!(driven.along(ask(&to, who + number)).await, Some(who + number));
                }
            })
        });
        for asked in asking.collect::<Vec<_>>() {
            tokio::time::timeout(LONG, asked).await.expect("in time").expect("no panic");
        }
    }

    /// One who has begun to wait alone, and is not polled any more, keeps nobody else waiting.
    #[tokio::test]
    async fn one_that_is_not_polled_is_in_nobodys_way() {
        let (asks, mut asked) = mpsc::channel::<Asked>(64);
        let (go, gone) = oneshot::channel::<()>();
        let driven = Driven::start(async move {
            let _ = gone.await;
            while let Some((number, answer)) = asked.recv().await {
                let _ = answer.send(number);
            }
        });
        let mut first = pin!(driven.along(ask(&asks, 1)));
        assert!(futures_util::poll!(first.as_mut()).is_pending());
        go.send(()).expect("is waited for");
        assert_eq!(tokio::time::timeout(LONG, driven.along(ask(&asks, 2))).await.expect("in time"), Some(2));
        assert_eq!(tokio::time::timeout(LONG, first).await.expect("in time"), Some(1));
    }

    #[test]
    fn a_connection_ends_with_its_runtime() {
        let runtime = || tokio::runtime::Builder::new_current_thread().enable_all().build().expect("starts");
        let made_in = runtime();
        let (to, driven) = made_in.block_on(async {
            let (to, driven, _) = echo();
            assert_eq!(driven.along(ask(&to, 1)).await, Some(1));
            (to, driven)
        });
        drop(made_in);
        assert!(to.is_closed(), "although it is still known");
        drop(driven);
    }

    #[tokio::test]
    async fn what_is_not_answered_ends_with_the_connection() {
        let (ask_it, mut asked) = mpsc::channel::<Asked>(64);
        let driven = Driven::start(async move {
            let mut kept = Vec::new();
            while let Some(unanswered) = asked.recv().await {
                kept.push(unanswered);
            }
        });
        let driven = Arc::new(driven);
        let (waiting, to) = (driven.clone(), ask_it.clone());
        let mut waits = Box::pin(async move { waiting.along(ask(&to, 1)).await });
        assert!(futures_util::poll!(waits.as_mut()).is_pending());
        drop(waits);
        drop(driven);
        tokio::time::timeout(LONG, ask_it.closed()).await.expect("the driver is gone");
    }
}
