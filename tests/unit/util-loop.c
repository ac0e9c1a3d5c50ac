/* SPDX-License-Identifier: Apache-2.0 */
/* The progress loop: calls and tasks, descriptors, timers, staying awake, spinning. */
#include "unit.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <sys/eventfd.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

#include <wherry/error.h>

#include "util/clock.h"
#include "util/loop.h"

#define PATIENCE (5 * WH_SECOND)

static struct wh_loop loop;

static int start(void **state)
{
	(void)state;
	return wh_loop_start(&loop, "wherry-test", false, NULL);
}

static int start_spinning(void **state)
{
	(void)state;
	return wh_loop_start(&loop, "a name that is much too long", true, NULL);
}

static int stop(void **state)
{
	(void)state;
	wh_loop_stop(&loop);
	return 0;
}

/* Wait until *value is at least `want`. */
static void await(atomic_int *value, int want)
{
	int64_t end = wh_now() + PATIENCE;

	while (atomic_load(value) < want) {
		assert_true(wh_now() < end);
		usleep(100);
	}
}

static int64_t cpu_time(void)
{
	struct rusage usage;

	getrusage(RUSAGE_SELF, &usage);
	return (usage.ru_utime.tv_sec + usage.ru_stime.tv_sec) * WH_SECOND +
	       (usage.ru_utime.tv_usec + usage.ru_stime.tv_usec) * 1000;
}

/* ---- calls and tasks ---------------------------------------------------------------------- */

struct called {
	bool here;
	int depth;
};

static void called(void *argument)
{
	struct called *call = argument;

	call->here = wh_loop_here(&loop);
	if (++call->depth < 3)
		wh_loop_call(&loop, called, call); /* from its own thread: at once */
}

static void call__runs_on_the_thread(void **state)
{
	struct called call = { 0 };

	(void)state;
	assert_false(wh_loop_here(&loop));
	wh_loop_call(&loop, called, &call);
	assert_true(call.here);
	assert_int_equal(call.depth, 3);
	assert_true(atomic_load(&loop.tid) > 0);
	assert_int_not_equal(atomic_load(&loop.tid), gettid());
}

struct counter {
	struct wh_task task;
	atomic_int runs;
	int again;
	uint64_t moved; /* each time */
};

static void count(struct wh_task *task)
{
	struct counter *counter = wh_container(task, struct counter, task);
	bool again = counter->again-- > 0;

	wh_loop_moved(&loop, counter->moved);
	/* Before counting: the test may free the task as soon as it sees the count. */
	if (again)
		wh_loop_post(&loop, task);
	atomic_fetch_add(&counter->runs, 1);
}

static void block(void *argument)
{
	atomic_int *dependency = argument;

	atomic_fetch_add(dependency, 1);
	while (atomic_load(dependency) < 2)
		usleep(100);
}

static void *call_block(void *dependency)
{
	wh_loop_call(&loop, block, dependency);
	return NULL;
}

static void post__not_twice(void **state)
{
	struct counter counter = { .task.run = count };
	atomic_int dependency = 0;
	pthread_t thread;

	(void)state;
	assert_int_equal(pthread_create(&thread, NULL, call_block, &dependency), 0);
	await(&dependency, 1);
	for (int i = 0; i < 10; i++)
		wh_loop_post(&loop, &counter.task);
	atomic_fetch_add(&dependency, 1);
	pthread_join(thread, NULL);
	await(&counter.runs, 1);
	wh_loop_call(&loop, called, &(struct called){ 0 });
	assert_int_equal(atomic_load(&counter.runs), 1);
	wh_loop_post(&loop, &counter.task);
	await(&counter.runs, 2);
}

static void post__itself(void **state)
{
	struct counter counter = { .task.run = count, .again = 1000 };

	(void)state;
	wh_loop_post(&loop, &counter.task);
	/* Other tasks run in between. */
	wh_loop_call(&loop, called, &(struct called){ 0 });
	await(&counter.runs, 1001);
}

/* Cancel a task on the loop's thread while it is in the list of posted tasks... */
static void post_and_cancel(void *argument)
{
	struct counter *counter = argument;

	wh_loop_post(&loop, &counter->task);
	wh_loop_cancel(&loop, &counter->task);
	wh_loop_cancel(&loop, &counter->task); /* not posted: does nothing */
}

/* ...or, as the second of two, in the list of tasks that this turn runs. */
struct canceller {
	struct wh_task task;
	struct counter *victim;
};

static void cancel_victim(struct wh_task *task)
{
	struct canceller *canceller = wh_container(task, struct canceller, task);

	wh_loop_cancel(&loop, &canceller->victim->task);
}

static void cancel__never_runs(void **state)
{
	struct counter counter = { .task.run = count };
	struct canceller canceller = { .task.run = cancel_victim, .victim = &counter };
	atomic_int dependency = 0;
	pthread_t thread;

	(void)state;
	wh_loop_call(&loop, post_and_cancel, &counter);
	assert_int_equal(pthread_create(&thread, NULL, call_block, &dependency), 0);
	await(&dependency, 1);
	wh_loop_post(&loop, &canceller.task);
	wh_loop_post(&loop, &counter.task);
	atomic_fetch_add(&dependency, 1);
	pthread_join(thread, NULL);
	wh_loop_call(&loop, called, &(struct called){ 0 });
	assert_int_equal(atomic_load(&counter.runs), 0);
}

#define POSTERS 4
#define POSTS 2000

static void *post_many(void *argument)
{
	struct counter *counter = argument;

	for (int i = 0; i < POSTS; i++) {
		int before = atomic_load(&counter->runs);

		wh_loop_post(&loop, &counter->task);
		if (i % 7 == 0)
			await(&counter->runs, before + 1);
		if (i % 50 == 0)
			wh_loop_call(&loop, called, &(struct called){ 0 });
	}
	return NULL;
}

/* No wake-up is lost when posting and falling asleep race, at once or after staying awake. */
static void post__from_many_threads(void **state)
{
	struct counter counters[POSTERS] = { 0 };
	pthread_t threads[POSTERS];

	(void)state;
	for (int i = 0; i < POSTERS; i++) {
		counters[i].task.run = count;
		counters[i].moved = (uint64_t)i * 4000;
		pthread_create(&threads[i], NULL, post_many, &counters[i]);
	}
	for (int i = 0; i < POSTERS; i++)
		pthread_join(threads[i], NULL);
	wh_loop_call(&loop, called, &(struct called){ 0 });
	for (int i = 0; i < POSTERS; i++)
		assert_true(atomic_load(&counters[i].runs) >= 1);
}

static void stop__runs_what_was_posted(void **state)
{
	struct counter counter = { .task.run = count };

	(void)state;
	for (int i = 0; i < 100; i++) {
		atomic_store(&counter.runs, 0);
		assert_int_equal(wh_loop_start(&loop, "wherry-test", i % 2, NULL), 0);
		wh_loop_post(&loop, &counter.task);
		wh_loop_stop(&loop);
		assert_int_equal(atomic_load(&counter.runs), 1);
	}
}

static void count_descriptors(int *least)
{
	*least = dup(0);
	assert_true(*least >= 0);
	close(*least);
}

static void start__closes_on_failure(void **state)
{
	struct rlimit limit, few;
	int before, after;

	(void)state;
	count_descriptors(&before);
	getrlimit(RLIMIT_NOFILE, &limit);
	few = limit;
	for (int room = 0; room < 2; room++) {
		few.rlim_cur = (rlim_t)before + (rlim_t)room;
		setrlimit(RLIMIT_NOFILE, &few);
		assert_int_equal(wh_loop_start(&loop, "wherry-test", false, NULL), -EMFILE);
		assert_non_null(strstr(wh_error_text(), room ? "eventfd" : "epoll_create1"));
		setrlimit(RLIMIT_NOFILE, &limit);
		count_descriptors(&after);
		assert_int_equal(before, after);
	}
}

static void look_at_signals(void *argument)
{
	sigset_t *set = argument;

	pthread_sigmask(SIG_SETMASK, NULL, set);
}

static void start__leaves_signals_to_the_program(void **state)
{
	sigset_t set;

	(void)state;
	wh_loop_call(&loop, look_at_signals, &set);
	assert_true(sigismember(&set, SIGINT) && sigismember(&set, SIGUSR1));
	assert_true(sigismember(&set, SIGALRM) && sigismember(&set, SIGCHLD));
	assert_false(sigismember(&set, SIGSEGV) || sigismember(&set, SIGBUS));
	pthread_sigmask(SIG_SETMASK, NULL, &set);
	assert_false(sigismember(&set, SIGINT));
}

/* ---- sources ------------------------------------------------------------------------------ */

struct pipe_end {
	struct wh_source source;
	int other;
	atomic_int calls;
	uint32_t events;
	struct pipe_end *victims; /* removed when this one is ready */
	int victim_count;
	bool keep; /* do not read */
};

static void pipe_ready(struct wh_source *source, uint32_t events)
{
	struct pipe_end *end = wh_container(source, struct pipe_end, source);
	char byte;

	assert_true(wh_loop_here(&loop));
	end->events = events;
	if (!end->keep && (events & EPOLLIN))
		assert_int_equal(read(source->fd, &byte, 1), 1);
	for (int i = 0; i < end->victim_count; i++) {
		struct pipe_end *victim = &end->victims[i];

		if (victim->source.fd < 0)
			continue;
		wh_loop_remove(&loop, &victim->source);
		close(victim->source.fd);
		victim->source.fd = -1;
	}
	atomic_fetch_add(&end->calls, 1);
}

static void open_pipe(struct pipe_end *end)
{
	int fds[2];

	memset(end, 0, sizeof(*end));
	assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, fds), 0);
	end->source.fd = fds[0];
	end->source.ready = pipe_ready;
	end->other = fds[1];
}

static void remove_pipe(void *argument)
{
	struct pipe_end *end = argument;

	if (end->source.fd >= 0) {
		wh_loop_remove(&loop, &end->source);
		close(end->source.fd);
	}
	if (end->other >= 0)
		close(end->other);
}

static void close_pipe(struct pipe_end *end)
{
	wh_loop_call(&loop, remove_pipe, end);
}

static void source__ready(void **state)
{
	struct pipe_end end;

	(void)state;
	open_pipe(&end);
	assert_int_equal(wh_loop_add(&loop, &end.source, EPOLLIN), 0);
	for (int i = 1; i <= 100; i++) {
		assert_int_equal(write(end.other, "x", 1), 1);
		await(&end.calls, i);
	}
	assert_int_equal(end.events, EPOLLIN);
	close_pipe(&end);
}

static void source__oneshot(void **state)
{
	struct pipe_end end;

	(void)state;
	open_pipe(&end);
	end.keep = true;
	assert_int_equal(wh_loop_add(&loop, &end.source, EPOLLIN | EPOLLONESHOT), 0);
	assert_int_equal(write(end.other, "x", 1), 1);
	await(&end.calls, 1);
	usleep(5000);
	assert_int_equal(atomic_load(&end.calls), 1);
	wh_loop_modify(&loop, &end.source, EPOLLIN | EPOLLONESHOT);
	await(&end.calls, 2);
	wh_loop_modify(&loop, &end.source, EPOLLOUT | EPOLLONESHOT);
	await(&end.calls, 3);
	assert_int_equal(end.events, EPOLLOUT);
	close_pipe(&end);
}

/* A source that waits for no event gets none, even when the other side hangs up, and costs no
 * CPU time. */
static void source__waits_for_nothing(void **state)
{
	struct pipe_end end;
	int64_t before;

	(void)state;
	open_pipe(&end);
	end.keep = true;
	assert_int_equal(wh_loop_add(&loop, &end.source, EPOLLIN), 0);
	wh_loop_modify(&loop, &end.source, 0);
	assert_int_equal(write(end.other, "x", 1), 1);
	close(end.other);
	end.other = -1;
	before = cpu_time();
	usleep(50000);
	assert_int_equal(atomic_load(&end.calls), 0);
	assert_true(cpu_time() - before < 25 * WH_MS);
	/* Events that came meanwhile are not lost. */
	wh_loop_modify(&loop, &end.source, EPOLLIN | EPOLLONESHOT);
	await(&end.calls, 1);
	assert_true((end.events & EPOLLIN) && (end.events & EPOLLHUP));
	close_pipe(&end);
}

static void source__added_for_nothing(void **state)
{
	struct pipe_end end;

	(void)state;
	open_pipe(&end);
	assert_int_equal(wh_loop_add(&loop, &end.source, 0), 0);
	assert_int_equal(write(end.other, "x", 1), 1);
	usleep(5000);
	assert_int_equal(atomic_load(&end.calls), 0);
	wh_loop_modify(&loop, &end.source, EPOLLIN);
	await(&end.calls, 1);
	close_pipe(&end);
}

static void source__cannot_be_added(void **state)
{
	struct pipe_end end;
	int file = open("/proc/self/cmdline", O_RDONLY | O_CLOEXEC);

	(void)state;
	open_pipe(&end);
	assert_int_equal(wh_loop_add(&loop, &end.source, EPOLLIN), 0);
	assert_int_equal(wh_loop_add(&loop, &end.source, EPOLLIN), -EEXIST);
	assert_non_null(strstr(wh_error_text(), "epoll_ctl"));
	close_pipe(&end);
	end.source.fd = file;
	assert_int_equal(wh_loop_add(&loop, &end.source, EPOLLIN), -EPERM);
	close(file);
	assert_int_equal(wh_loop_add(&loop, &end.source, EPOLLIN), -EBADF);
}

#define CROWD 40

/* All are ready in one batch, and the first one served removes the others. */
static void remove__in_the_same_batch(void **state)
{
	static struct pipe_end ends[CROWD];
	atomic_int dependency = 0;
	pthread_t thread;
	int calls = 0;

	(void)state;
	for (int i = 0; i < CROWD; i++) {
		open_pipe(&ends[i]);
		/* Each half removes the other half; the half served first stays. */
		ends[i].victims = i < CROWD / 2 ? ends + CROWD / 2 : ends;
		ends[i].victim_count = CROWD / 2;
		assert_int_equal(wh_loop_add(&loop, &ends[i].source, EPOLLIN), 0);
	}
	assert_int_equal(pthread_create(&thread, NULL, call_block, &dependency), 0);
	await(&dependency, 1);
	for (int i = 0; i < CROWD; i++)
		assert_int_equal(write(ends[i].other, "x", 1), 1);
	atomic_fetch_add(&dependency, 1);
	pthread_join(thread, NULL);
	for (int turn = 0; turn < 3; turn++)
		wh_loop_call(&loop, called, &(struct called){ 0 });
	usleep(20000);
	for (int i = 0; i < CROWD; i++) {
		/* Removed sources were not called. */
		assert_int_equal(atomic_load(&ends[i].calls), ends[i].source.fd >= 0 ? 1 : 0);
		calls += atomic_load(&ends[i].calls);
	}
	assert_int_equal(calls, CROWD / 2);
	for (int i = 0; i < CROWD; i++)
		close_pipe(&ends[i]);
}

/* ---- timers ------------------------------------------------------------------------------- */

static char fired[16];
static atomic_int fire_count;

struct alarm {
	struct wh_timer timer;
	int64_t late;
	struct alarm *clear, *set;
	char name;
};

static void fire(struct wh_timer *timer)
{
	struct alarm *alarm = wh_container(timer, struct alarm, timer);
	int entry = atomic_load(&fire_count);

	alarm->late = timer->at > 0 ? wh_now() - timer->at : 0;
	if (alarm->clear)
		wh_timer_clear(&alarm->clear->timer);
	if (alarm->set)
		wh_timer_set(&loop, &alarm->set->timer, 0);
	if (entry < (int)sizeof(fired))
		fired[entry] = alarm->name;
	atomic_fetch_add(&fire_count, 1);
}

static void set_in_disorder(void *argument)
{
	struct alarm *alarms = argument;
	int64_t now = wh_now();

	memset(fired, 0, sizeof(fired));
	atomic_store(&fire_count, 0);
	for (int i = 0; i < 6; i++)
		alarms[i] = (struct alarm){ .timer.fire = fire, .name = (char)('a' + i) };
	wh_timer_set(&loop, &alarms[2].timer, now + 6 * WH_MS);
	wh_timer_set(&loop, &alarms[0].timer, now + 2 * WH_MS);
	wh_timer_set(&loop, &alarms[1].timer, now + 2 * WH_MS); /* after the other */
	wh_timer_set(&loop, &alarms[4].timer, now + 3600 * WH_SECOND);
	wh_timer_set(&loop, &alarms[3].timer, now + 1 * WH_MS);
	wh_timer_set(&loop, &alarms[3].timer, now + 9 * WH_MS); /* postponed */
	wh_timer_set(&loop, &alarms[4].timer, now + 12 * WH_MS); /* brought forward */
	wh_timer_set(&loop, &alarms[5].timer, now + 4 * WH_MS);
	wh_timer_clear(&alarms[5].timer);
	wh_timer_clear(&alarms[5].timer);
}

static void timer__order(void **state)
{
	struct alarm alarms[6];

	(void)state;
	wh_loop_call(&loop, set_in_disorder, alarms);
	await(&fire_count, 5);
	assert_string_equal(fired, "abcde");
	for (int i = 0; i < 5; i++)
		assert_true(alarms[i].late >= 0);
}

/* Three timers are due together: the first clears the second; the third sets a fourth, due at
 * once, which clears the second again. */
static void set_entangled(void *argument)
{
	struct alarm *alarms = argument;

	memset(fired, 0, sizeof(fired));
	atomic_store(&fire_count, 0);
	for (int i = 0; i < 4; i++)
		alarms[i] = (struct alarm){ .timer.fire = fire, .name = (char)('a' + i) };
	alarms[0].clear = &alarms[1];
	alarms[2].set = &alarms[3];
	alarms[3].clear = &alarms[1];
	for (int i = 0; i < 3; i++)
		wh_timer_set(&loop, &alarms[i].timer, i - 1);
}

static void timer__set_and_cleared_by_another(void **state)
{
	struct alarm alarms[4];

	(void)state;
	wh_loop_call(&loop, set_entangled, alarms);
	await(&fire_count, 3);
	wh_loop_call(&loop, called, &(struct called){ 0 });
	assert_string_equal(fired, "acd");
}

static void set_for_ever(void *argument)
{
	struct alarm *alarm = argument;

	*alarm = (struct alarm){ .timer.fire = fire, .name = 'x', .set = alarm };
	atomic_store(&fire_count, 0);
	wh_timer_set(&loop, &alarm->timer, INT64_MIN);
}

static void clear_alarm(void *argument)
{
	struct alarm *alarm = argument;

	wh_timer_clear(&alarm->timer);
}

/* A timer that is always due does not starve the rest of the loop. */
static void timer__always_due(void **state)
{
	struct alarm alarm;

	(void)state;
	wh_loop_call(&loop, set_for_ever, &alarm);
	await(&fire_count, 100);
	wh_loop_call(&loop, clear_alarm, &alarm);
}

#define FAR 20000
#define NEAR 300000

/* The timers of an engine with many peers: heartbeats soon, other timers much later. */
static void set_many(void *argument)
{
	struct alarm *alarms = argument;

	for (int i = 0; i <= FAR; i++) {
		alarms[i] = (struct alarm){ .timer.fire = fire };
		wh_timer_set(&loop, &alarms[i].timer, wh_now() + 1800 * WH_SECOND + i);
	}
	for (int i = 0; i < NEAR; i++)
		wh_timer_set(&loop, &alarms[FAR].timer, wh_now() + 900 * WH_SECOND);
	for (int i = 0; i <= FAR; i++)
		wh_timer_clear(&alarms[i].timer);
}

/* Setting a timer for soon does not walk past the timers for later: with a single list this test
 * took 6,000,000,000 steps. */
static void timer__soon_among_many_later(void **state)
{
	struct alarm *alarms = calloc(FAR + 1, sizeof(*alarms));
	int64_t begun = cpu_time();

	(void)state;
	assert_non_null(alarms);
	wh_loop_call(&loop, set_many, alarms);
	assert_true(cpu_time() - begun < 3 * WH_SECOND);
	free(alarms);
}

/* ---- staying awake ------------------------------------------------------------------------- */

/* How long a loop is willing to stay awake, read between two of its turns. */
struct mood {
	int64_t earned, patience;
};

static void look_at_mood(void *argument)
{
	struct mood *mood = argument;

	*mood = (struct mood){ loop.earned, loop.patience };
}

static struct mood mood_now(void)
{
	struct mood mood;

	wh_loop_call(&loop, look_at_mood, &mood);
	return mood;
}

struct mover {
	struct wh_task task;
	uint64_t bytes;
	struct pipe_end *end; /* gets a byte meanwhile; may be NULL */
	int64_t at; /* when it was moved */
	atomic_int runs;
};

static void move(struct wh_task *task)
{
	struct mover *mover = wh_container(task, struct mover, task);

	wh_loop_moved(&loop, mover->bytes);
	if (mover->end)
		assert_int_equal(write(mover->end->other, "x", 1), 1);
	mover->at = wh_now();
	atomic_fetch_add(&mover->runs, 1);
}

/* How long, at least, the idle loop stays awake after moving `bytes` bytes. */
static int64_t awake_after(uint64_t bytes)
{
	struct mover mover = { .task.run = move, .bytes = bytes };
	int64_t end = wh_now() + PATIENCE;

	wh_loop_post(&loop, &mover.task);
	await(&mover.runs, 1);
	while (!atomic_load(&loop.sleeping))
		assert_true(wh_now() < end);
	return wh_now() - mover.at;
}

static void moved__stays_awake(void **state)
{
	(void)state;
	assert_true(awake_after(UINT64_MAX) >= WH_MS / 10);
	/* Nothing came: it may stay awake for less next time. */
	assert_true(awake_after(1 << 20) >= WH_MS / 20);
	assert_int_equal(mood_now().earned, 0);
	wh_loop_moved(&loop, 1 << 20); /* by another thread */
	assert_int_equal(mood_now().earned, 0);
	/* A few bytes are too few to poll for; they add up. */
	awake_after(100);
	awake_after(100);
	assert_int_equal(mood_now().earned, 200);
	assert_int_equal(mood_now().patience, WH_MS / 40);
}

static int64_t patience_then;

static void pipe_ready_in_time(struct wh_source *source, uint32_t events)
{
	patience_then = loop.patience;
	pipe_ready(source, events);
}

static void moved__patience(void **state)
{
	struct mover mover = { .task.run = move, .bytes = 1 << 20 };
	struct pipe_end end;
	int64_t least;

	(void)state;
	assert_int_equal(mood_now().patience, WH_MS / 10);
	for (int i = 0; i < 10; i++)
		awake_after(1 << 20);
	least = mood_now().patience;
	assert_in_range(least, 1000, WH_MS / 100);
	/* Bytes that come in time raise it again. */
	open_pipe(&end);
	end.source.ready = pipe_ready_in_time;
	assert_int_equal(wh_loop_add(&loop, &end.source, EPOLLIN), 0);
	mover.end = &end;
	wh_loop_post(&loop, &mover.task);
	await(&end.calls, 1);
	assert_int_equal(patience_then, 2 * least);
	close_pipe(&end);
}

static void end_counter(void *argument)
{
	struct counter *counter = argument;

	counter->again = 0;
}

/* A loop that gets tasks without end, each of which moves bytes, still polls its descriptors. */
static void moved__looks_at_descriptors(void **state)
{
	struct counter counter = { .task.run = count, .again = INT32_MAX, .moved = 1 << 20 };
	struct pipe_end end;

	(void)state;
	open_pipe(&end);
	assert_int_equal(wh_loop_add(&loop, &end.source, EPOLLIN), 0);
	wh_loop_post(&loop, &counter.task);
	await(&counter.runs, 10);
	assert_int_equal(write(end.other, "x", 1), 1);
	await(&end.calls, 1);
	wh_loop_call(&loop, end_counter, &counter);
	wh_loop_call(&loop, called, &(struct called){ 0 });
	close_pipe(&end);
}

/* ---- spinning ----------------------------------------------------------------------------- */

struct spun {
	struct wh_spinner spinner;
	atomic_int polls;
	atomic_int work; /* polls that report work */
	struct spun *remove;
	struct spun *add;
};

static bool poll_spun(struct wh_spinner *spinner)
{
	struct spun *spun = wh_container(spinner, struct spun, spinner);

	if (spun->remove)
		wh_list_remove(&spun->remove->spinner.link);
	if (spun->add && !spun->add->spinner.link.next)
		wh_list_append(&loop.spinners, &spun->add->spinner.link);
	atomic_fetch_add(&spun->polls, 1);
	return atomic_load(&spun->work) > 0 && atomic_fetch_sub(&spun->work, 1) > 0;
}

static void add_spinner(void *argument)
{
	struct spun *spun = argument;

	spun->spinner.poll = poll_spun;
	wh_list_append(&loop.spinners, &spun->spinner.link);
}

static void remove_spinner(void *argument)
{
	struct spun *spun = argument;

	wh_list_remove(&spun->spinner.link);
}

static void spin__polls_while_there_are_spinners(void **state)
{
	struct counter counter = { .task.run = count };
	struct spun spun = { 0 };
	struct pipe_end end;
	struct alarm alarms[6];
	int polls;

	(void)state;
	open_pipe(&end);
	assert_int_equal(wh_loop_add(&loop, &end.source, EPOLLIN), 0);
	wh_loop_call(&loop, add_spinner, &spun);
	await(&spun.polls, 1000);
	usleep(3000); /* quiet by now */
	polls = atomic_load(&spun.polls);
	await(&spun.polls, polls + 100);
	/* Sources, tasks and timers are served whether the spinner is quiet or busy. */
	for (int busy = 0; busy < 2; busy++) {
		atomic_store(&spun.work, busy ? INT32_MAX : 0);
		assert_int_equal(write(end.other, "x", 1), 1);
		await(&end.calls, busy + 1);
		wh_loop_post(&loop, &counter.task);
		await(&counter.runs, busy + 1);
		wh_loop_call(&loop, set_in_disorder, alarms);
		await(&fire_count, 5);
	}
	wh_loop_call(&loop, remove_spinner, &spun);
	polls = atomic_load(&spun.polls);
	usleep(3000);
	assert_int_equal(atomic_load(&spun.polls), polls);
	close_pipe(&end);
}

static void spin__sleeps_without_spinners(void **state)
{
	int64_t before;

	(void)state;
	wh_loop_call(&loop, called, &(struct called){ 0 });
	before = cpu_time();
	usleep(50000);
	assert_true(cpu_time() - before < 25 * WH_MS);
}

static void spin__spinners_come_and_go_while_polled(void **state)
{
	struct spun a = { 0 }, b = { 0 }, c = { 0 }, d = { 0 };

	(void)state;
	/* a removes b, which is next; c removes itself; a adds d, and d adds b. */
	a.remove = &b;
	a.add = &d;
	b.spinner.poll = c.spinner.poll = d.spinner.poll = poll_spun;
	c.remove = &c;
	d.add = &b;
	wh_loop_call(&loop, add_spinner, &a);
	await(&d.polls, 1000);
	wh_loop_call(&loop, add_spinner, &c);
	await(&c.polls, 1);
	await(&b.polls, 100);
	assert_int_equal(atomic_load(&c.polls), 1);
	wh_loop_call(&loop, remove_spinner, &a);
	wh_loop_call(&loop, remove_spinner, &d); /* or it would add b again */
	wh_loop_call(&loop, remove_spinner, &b);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test_setup_teardown(call__runs_on_the_thread, start, stop),
		cmocka_unit_test_setup_teardown(post__not_twice, start, stop),
		cmocka_unit_test_setup_teardown(post__itself, start, stop),
		cmocka_unit_test_setup_teardown(cancel__never_runs, start, stop),
		cmocka_unit_test_setup_teardown(post__from_many_threads, start, stop),
		cmocka_unit_test_setup_teardown(post__from_many_threads, start_spinning, stop),
		cmocka_unit_test(stop__runs_what_was_posted),
		cmocka_unit_test(start__closes_on_failure),
		cmocka_unit_test_setup_teardown(start__leaves_signals_to_the_program, start, stop),
		cmocka_unit_test_setup_teardown(source__ready, start, stop),
		cmocka_unit_test_setup_teardown(source__oneshot, start, stop),
		cmocka_unit_test_setup_teardown(source__waits_for_nothing, start, stop),
		cmocka_unit_test_setup_teardown(source__added_for_nothing, start, stop),
		cmocka_unit_test_setup_teardown(source__cannot_be_added, start, stop),
		cmocka_unit_test_setup_teardown(remove__in_the_same_batch, start, stop),
		cmocka_unit_test_setup_teardown(timer__order, start, stop),
		cmocka_unit_test_setup_teardown(timer__set_and_cleared_by_another, start, stop),
		cmocka_unit_test_setup_teardown(timer__always_due, start, stop),
		cmocka_unit_test_setup_teardown(timer__soon_among_many_later, start, stop),
		cmocka_unit_test_setup_teardown(moved__stays_awake, start, stop),
		cmocka_unit_test_setup_teardown(moved__patience, start, stop),
		cmocka_unit_test_setup_teardown(moved__looks_at_descriptors, start, stop),
		cmocka_unit_test_setup_teardown(spin__polls_while_there_are_spinners,
						start_spinning, stop),
		cmocka_unit_test_setup_teardown(spin__sleeps_without_spinners, start_spinning,
						stop),
		cmocka_unit_test_setup_teardown(spin__spinners_come_and_go_while_polled,
						start_spinning, stop),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
