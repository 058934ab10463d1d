//! Who drives a connection: the one who waits for an answer, on its own thread, while nobody else does; else a task.
//!
//! What is handed to a task may have to wake a thread first, which at rest is a good part of what a request takes. Where many
//! ask at once, a task is cheaper: it sends what all of them have to say in one go.

use std::future::poll_fn;
use std::pin::{Pin, pin};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Wake, Waker};

/// How often one who waits turns before others have their turn.
const POLLS_MAX: usize = 4;

type ConnectionFuture = Pin<Box<dyn Future<Output = ()> + Send>>;

/// A connection that is driven, until the last of these is dropped.
pub(crate) struct ConnectionDriver(Arc<DriverShared>);

struct DriverShared {
    /// Reads and writes; gone when the connection has ended.
    future: Mutex<Option<ConnectionFuture>>,
    state: Mutex<DriverState>,
}

struct DriverState {
    /// How many wait for an answer.
    waiters: usize,
    driver: Driver,
    /// Something has come, or is to be sent, and nobody has looked at it.
    has_pending: bool,
    task_waker: Option<Waker>,
}

/// The only one who waits.
enum Driver {
    None,
    /// Is at it, and looks once more before it rests.
    Polling,
    Sleeping(Waker),
}

impl ConnectionDriver {
    /// Drives a connection from now on; on the runtime of who calls this, while nobody waits or several do.
    pub(crate) fn start(driver: impl Future<Output = ()> + Send + 'static) -> Self {
        // The first turn is the task's: nobody has asked for anything yet.
        let who = DriverState { waiters: 0, driver: Driver::None, has_pending: true, task_waker: None };
        let drive = Arc::new(DriverShared { future: Mutex::new(Some(Box::pin(driver))), state: Mutex::new(who) });
        let task = DriverTask(drive.clone());
        tokio::spawn(async move { poll_fn(|cx| task.0.poll_task(cx)).await });
        ConnectionDriver(drive)
    }

    /// Drives the connection along with a request that goes over it.
    pub(crate) async fn drive_request<T>(&self, request: impl Future<Output = T>) -> T {
        let drive = &self.0;
        let mut request = pin!(request);
        let _waits = WaiterGuard::register(drive);
        poll_fn(|cx| {
            for _ in 0..POLLS_MAX {
                drive.start_polling();
                if let Poll::Ready(answer) = request.as_mut().poll(cx) {
                    return Poll::Ready(answer);
                }
                if drive.try_sleep(cx.waker()) {
                    return Poll::Pending;
                }
                drive.poll_connection();
            }
            cx.waker().wake_by_ref();
            Poll::Pending
        })
        .await
    }
}

impl Drop for ConnectionDriver {
    /// Also what is not answered ends with it.
    fn drop(&mut self) {
        self.0.close();
        self.0.wake_task();
    }
}

/// The task. A connection cannot outlive the runtime that it was made in, and ends with the task, as that does with the runtime.
struct DriverTask(Arc<DriverShared>);

impl Drop for DriverTask {
    fn drop(&mut self) {
        self.0.close();
    }
}

impl DriverShared {
    fn future(&self) -> MutexGuard<'_, Option<ConnectionFuture>> {
        self.future.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The connection is closed.
    fn close(&self) {
        let ended = self.future().take();
        drop(ended);
    }

    fn state(&self) -> MutexGuard<'_, DriverState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// One turn of the connection: reads what has come, sends what is to be sent.
    fn poll_connection(self: &Arc<Self>) {
        let waker = Waker::from(self.clone());
        let mut driver = self.future();
        let ended = driver.as_mut().is_some_and(|one| one.as_mut().poll(&mut Context::from_waker(&waker)).is_ready());
        if ended {
            *driver = None;
            drop(driver);
            self.wake_task();
        }
    }

    /// One who waits begins to turn: if it is the only one, it looks itself at what comes.
    fn start_polling(&self) {
        let mut who = self.state();
        if who.waiters == 1 {
            who.driver = Driver::Polling;
        }
    }

    /// Whether one who waits may rest. Not if there is something to look at, and it is the only one: then it has to.
    fn try_sleep(&self, waker: &Waker) -> bool {
        let mut who = self.state();
        if who.waiters > 1 {
            DriverShared::hand_over_to_task(who);
            return true;
        }
        if std::mem::take(&mut who.has_pending) {
            return false;
        }
        who.driver = Driver::Sleeping(waker.clone());
        true
    }

    /// Nobody looks alone any more: what nobody has looked at is for the task.
    fn hand_over_to_task(mut who: MutexGuard<'_, DriverState>) {
        let before = std::mem::replace(&mut who.driver, Driver::None);
        let task = who.task_waker.clone().filter(|_| who.has_pending);
        // Neither under the lock: what a waker keeps alive may end with it, and ask for the lock itself.
        drop(who);
        drop(before);
        if let Some(task) = task {
            task.wake();
        }
    }

    /// The task: looks while nobody is the only one who waits, until the connection has ended.
    fn poll_task(self: &Arc<Self>, cx: &mut Context<'_>) -> Poll<()> {
        for _ in 0..POLLS_MAX {
            let stirred = {
                let mut who = self.state();
                who.task_waker = Some(cx.waker().clone());
                matches!(who.driver, Driver::None) && std::mem::take(&mut who.has_pending)
            };
            if self.future().is_none() {
                return Poll::Ready(());
            }
            if !stirred {
                return Poll::Pending;
            }
            self.poll_connection();
        }
        cx.waker().wake_by_ref();
        Poll::Pending
    }

    fn wake_task(&self) {
        let task = self.state().task_waker.take();
        if let Some(task) = task {
            task.wake();
        }
    }
}

impl Wake for DriverShared {
    /// There is something to look at.
    fn wake(self: Arc<Self>) {
        let waker = {
            let mut who = self.state();
            who.has_pending = true;
            match &who.driver {
                Driver::None => who.task_waker.clone(),
                Driver::Polling => None,
                Driver::Sleeping(waker) => Some(waker.clone()),
            }
        };
        if let Some(waker) = waker {
            waker.wake();
        }
    }
}

/// Somebody who waits for an answer; ends when dropped.
struct WaiterGuard<'d>(&'d DriverShared);

impl<'d> WaiterGuard<'d> {
    fn register(drive: &'d DriverShared) -> Self {
        let mut who = drive.state();
        who.waiters += 1;
        // From the second on the task looks; whoever turns just now notices before it rests.
        if matches!(who.driver, Driver::Sleeping(_)) {
            DriverShared::hand_over_to_task(who);
        }
        WaiterGuard(drive)
    }
}

impl Drop for WaiterGuard<'_> {
    fn drop(&mut self) {
        let mut who = self.0.state();
        who.waiters -= 1;
        DriverShared::hand_over_to_task(who);
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use tokio::sync::{mpsc, oneshot};

    use super::*;

    const TEST_TIMEOUT: Duration = Duration::from_secs(20);

    type EchoRequest = (u32, oneshot::Sender<u32>);
    /// Which task has turned the connection, for each request; `None` is a caller that is no task.
    type PolledBy = Arc<Mutex<Vec<Option<tokio::task::Id>>>>;

    /// A connection that answers what it is asked.
    fn start_echo() -> (mpsc::Sender<EchoRequest>, ConnectionDriver, PolledBy) {
        let (ask, mut asked) = mpsc::channel::<EchoRequest>(64);
        let turned = PolledBy::default();
        let by = turned.clone();
        let driver = async move {
            while let Some((number, answer)) = asked.recv().await {
                by.lock().expect("nobody panics").push(tokio::task::try_id());
                let _ = answer.send(number);
            }
        };
        (ask, ConnectionDriver::start(driver), turned)
    }

    async fn request(to: &mpsc::Sender<EchoRequest>, number: u32) -> Option<u32> {
        let (answer, answered) = oneshot::channel();
        to.send((number, answer)).await.ok()?;
        answered.await.ok()
    }

    #[tokio::test]
    async fn single_waiter_drives_connection_itself() {
        let (to, driven, turned) = start_echo();
        for number in 0..10 {
            assert_eq!(driven.drive_request(request(&to, number)).await, Some(number));
        }
        assert_eq!(turned.lock().expect("nobody panics")[..], [None; 10], "no task did");
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn every_waiter_is_answered_when_others_cancel() {
        let (to, driven, _) = start_echo();
        let driven = Arc::new(driven);
        let asking = (0..8u32).map(|who| {
            let (to, driven) = (to.clone(), driven.clone());
            tokio::spawn(async move {
                for number in 0..2_000 {
                    if fastrand::u32(..4) == 0 {
                        // Polled once at most.
                        let _ = tokio::time::timeout(Duration::ZERO, driven.drive_request(request(&to, number))).await;
                    }
                    if fastrand::u32(..50) == 0 {
                        tokio::time::sleep(Duration::from_micros(fastrand::u64(..300))).await;
                    }
                    assert_eq!(driven.drive_request(request(&to, who + number)).await, Some(who + number));
                }
            })
        });
        for asked in asking.collect::<Vec<_>>() {
            tokio::time::timeout(TEST_TIMEOUT, asked).await.expect("in time").expect("no panic");
        }
    }

    /// One who has begun to wait alone, and is not polled any more, keeps nobody else waiting.
    #[tokio::test]
    async fn unpolled_waiter_does_not_block_others() {
        let (asks, mut asked) = mpsc::channel::<EchoRequest>(64);
        let (go, gone) = oneshot::channel::<()>();
        let driven = ConnectionDriver::start(async move {
            let _ = gone.await;
            while let Some((number, answer)) = asked.recv().await {
                let _ = answer.send(number);
            }
        });
        let mut first = pin!(driven.drive_request(request(&asks, 1)));
        assert!(futures_util::poll!(first.as_mut()).is_pending());
        go.send(()).expect("is waited for");
        assert_eq!(
            tokio::time::timeout(TEST_TIMEOUT, driven.drive_request(request(&asks, 2))).await.expect("in time"),
            Some(2)
        );
        assert_eq!(tokio::time::timeout(TEST_TIMEOUT, first).await.expect("in time"), Some(1));
    }

    #[test]
    fn connection_closes_with_its_runtime() {
        let runtime = || tokio::runtime::Builder::new_current_thread().enable_all().build().expect("starts");
        let made_in = runtime();
        let (to, driven) = made_in.block_on(async {
            let (to, driven, _) = start_echo();
            assert_eq!(driven.drive_request(request(&to, 1)).await, Some(1));
            (to, driven)
        });
        drop(made_in);
        assert!(to.is_closed(), "although it is still known");
        drop(driven);
    }

    #[tokio::test]
    async fn pending_requests_end_with_connection() {
        let (ask_it, mut asked) = mpsc::channel::<EchoRequest>(64);
        let driven = ConnectionDriver::start(async move {
            let mut kept = Vec::new();
            while let Some(unanswered) = asked.recv().await {
                kept.push(unanswered);
            }
        });
        let driven = Arc::new(driven);
        let (waiting, to) = (driven.clone(), ask_it.clone());
        let mut waits = Box::pin(async move { waiting.drive_request(request(&to, 1)).await });
        assert!(futures_util::poll!(waits.as_mut()).is_pending());
        drop(waits);
        drop(driven);
        tokio::time::timeout(TEST_TIMEOUT, ask_it.closed()).await.expect("the driver is gone");
    }
}
