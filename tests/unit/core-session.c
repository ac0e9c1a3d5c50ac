/* SPDX-License-Identifier: Apache-2.0 */
/* session.c: which sessions begin, what their frames do, and when they end */
#include "allocation.h"
#include "core-link.h"

#include <fcntl.h>

#include "core/notification.h"
#include "frozen-clock.h"
#include "net/quota.h"
#include "util/hash.h"

#define START (1000 * WH_SECOND)
#define SESSIONS_MOST 16384 /* as in session.c */
#define SOURCE 0x0a000001u

/* ---- begin --------------------------------------------------------------------------------- */

/* An initiator whose handshake is complete. */
static struct guest {
	int here, there;
	struct wh_channel *channel;
	uint64_t id;
	unsigned fails; /* this allocation */
	int error;
} guest;

static void guest_enter(void *argument)
{
	static const uint8_t key[WH_KEY_SIZE] = { 1, 2, 3 };
	const struct wh_hello hello = { .epoch = 77, .role = WH_ROLE_CONTROL, .name = "guest" };

	(void)argument;
	allocation_fails = guest.fails;
	guest.error =
		wh_session_new(engine, guest.here, guest.channel, SOURCE, &hello, guest.id, key);
}

/* How the session begins. */
static int begin(uint64_t id)
{
	struct link link;

	link_sockets(&link);
	guest.here = link.here;
	guest.there = link.there;
	guest.id = id;
	wh_loop_call(&engine->loops[0], guest_enter, NULL);
	allocation_fails = 0;
	return guest.error;
}

static void guest_leave(void *argument)
{
	wh_session_end(argument, -ECONNRESET, "the test ends it");
}

static void end(struct wh_session *session)
{
	wh_loop_call(&engine->loops[0], guest_leave, session);
	close(guest.there);
}

/* The initiator is told why, and the connection ends. */
static void refused(void)
{
	const struct link link = { .there = guest.there };
	char text[WH_REFUSAL_MAX];
	struct wh_frame frame;
	int error = 0;

	assert_int_equal(link_frame(&link, &frame), WH_FRAME_REFUSED);
	assert_int_equal(wh_refusal_decode(frame_bytes, frame.length, &error, text), 0);
	assert_int_equal(error, EBUSY);
	assert_string_equal(text, "this engine cannot take more connections now");
	assert_int_equal(recv(guest.there, text, 1, MSG_DONTWAIT), 0);
	close(guest.there);
}

/* The engine knows of no session, and charges none to an address. */
static void none_left(void)
{
	struct wh_quota *quota = wh_quota_acquire(&engine->quotas, SOURCE);

	assert_int_equal(engine->session_count, 0);
	assert_true(wh_list_empty(&engine->sessions));
	assert_null(wh_session_find(engine, guest.id));
	assert_non_null(quota);
	assert_int_equal(quota->sessions, 1);
	wh_quota_release(quota);
}

static void new__is_known_and_counted(void **state)
{
	struct wh_session *one, *two;
	uint64_t opened = wh_count_get(&engine->statistics.sessions_opened);

	(void)state;
	fake_logs();
	assert_int_equal(begin(7), 0);
	one = wh_session_find(engine, 7);
	assert_non_null(one);
	logged("session: guest has connected");
	assert_int_equal(one->id, 7);
	assert_int_equal(one->key[2], 3);
	assert_int_equal(one->hello.epoch, 77);
	assert_int_equal(one->quota->sessions, 1);
	assert_ptr_equal(one->control.quota, one->quota);
	assert_int_equal(engine->session_count, 1);
	link_quiet(&(struct link){ .there = guest.there });
	end(one);
	none_left();
	assert_int_equal(begin(8), 0);
	two = wh_session_find(engine, 8);
	assert_null(wh_session_find(engine, 7));
	assert_int_equal(engine->session_count, 1);
	assert_int_equal(wh_count_get(&engine->statistics.sessions_opened), opened + 2);
	end(two);
	logged("session: guest has left: the test ends it");
	none_left();
}

static void new__too_many(void **state)
{
	(void)state;
	engine->session_count = SESSIONS_MOST;
	assert_int_equal(begin(7), -EBUSY);
	refused();
	engine->session_count = SESSIONS_MOST - 1;
	assert_int_equal(begin(7), 0);
	assert_int_equal(engine->session_count, SESSIONS_MOST);
	end(wh_session_find(engine, 7));
	engine->session_count = 0;
	none_left();
}

/* The quota, the session and its place in the table. */
static void new__no_memory(void **state)
{
	unsigned refusals = 0;

	(void)state;
	for (guest.fails = 1; begin(7); guest.fails++) {
		assert_int_equal(guest.error, -EBUSY);
		refused();
		none_left();
		refusals++;
	}
	guest.fails = 0;
	assert_true(refusals >= 2);
	end(wh_session_find(engine, 7));
	none_left();
}

/* A descriptor that epoll does not take ends the session before it began. */
static void new__no_connection(void **state)
{
	uint64_t opened = wh_count_get(&engine->statistics.sessions_opened);

	(void)state;
	guest.here = open("/dev/null", O_RDWR | O_CLOEXEC);
	guest.id = 9;
	wh_loop_call(&engine->loops[0], guest_enter, NULL);
	assert_int_equal(guest.error, -EPERM);
	assert_int_equal(fcntl(guest.here, F_GETFD), -1);
	none_left();
	assert_int_equal(wh_count_get(&engine->statistics.sessions_opened), opened);
}

/* ---- a channel that has proved a name ------------------------------------------------------ */

static unsigned channels_freed;
static char proved[WH_NAME_MAX];

static void proved_free(struct wh_channel *channel)
{
	(void)channel;
	channels_freed++;
}

static const char *proved_name(const struct wh_channel *channel)
{
	(void)channel;
	return proved;
}

static bool proved_has_none(const struct wh_channel *channel)
{
	(void)channel;
	return false;
}

static bool proved_established(const struct wh_channel *channel)
{
	(void)channel;
	return true;
}

static ssize_t proved_receive(struct wh_channel *channel, const struct iovec *parts, int count)
{
	(void)channel;
	(void)parts;
	(void)count;
	errno = EAGAIN;
	return -1;
}

static const char *proved_text(const struct wh_channel *channel)
{
	(void)channel;
	return "";
}

/* The name in the certificate counts. */
static void new__name_of_the_channel(void **state)
{
	static const struct wh_channel_ops ops = {
		.free = proved_free,
		.established = proved_established,
		.receive = proved_receive,
		.text = proved_text,
		.name = proved_name,
		.unsent = proved_has_none,
		.pending = proved_has_none,
	};
	static struct wh_channel channel = { &ops };
	struct wh_session *session;

	(void)state;
	channels_freed = 0;
	guest.channel = &channel;
	snprintf(proved, sizeof(proved), "node7");
	assert_int_equal(begin(7), 0);
	session = wh_session_find(engine, 7);
	assert_string_equal(session->hello.name, "node7");
	end(session);
	assert_int_equal(channels_freed, 1);
	proved[0] = 0;
	assert_int_equal(begin(8), 0);
	session = wh_session_find(engine, 8);
	assert_string_equal(session->hello.name, "guest");
	end(session);
	assert_int_equal(channels_freed, 2);
	guest.channel = NULL;
}

/* ---- frames -------------------------------------------------------------------------------- */

static int give(struct link *link, uint16_t type, const void *bytes, size_t length)
{
	const struct wh_frame frame = { .length = (uint32_t)length, .type = type };
	uint8_t *exact = exact_copy(bytes, length);
	int error = link->session->control.frame(&link->session->control, &frame, exact);

	free(exact);
	return error;
}

static int give_number(struct link *link, uint16_t type, uint64_t number, size_t length)
{
	uint8_t bytes[16] = { 0 };

	wh_put64(bytes, number);
	return give(link, type, bytes, length);
}

static void frame__ping(void **state)
{
	struct link link = session_link();

	(void)state;
	frozen_now = START;
	assert_int_equal(give_number(&link, WH_FRAME_PING, 0x1234567890, 8), 0);
	assert_int_equal(link.session->heard, START);
	link_number(&link, WH_FRAME_PONG, 0x1234567890);
	assert_int_equal(give_number(&link, WH_FRAME_PING, 1, 7), -EPROTO);
	assert_int_equal(give_number(&link, WH_FRAME_PING, 1, 9), -EPROTO);
	link_quiet(&link);
	frozen_now = 0;
	link_close(&link);
}

static unsigned slow_frames;

/* A question that takes long to answer. */
static int frame_slowly(struct wh_control *control, const struct wh_frame *frame,
			const uint8_t *payload)
{
	(void)control, (void)frame, (void)payload;
	frozen_now += WH_MS;
	slow_frames++;
	return 0;
}

static void turn(void *argument)
{
	struct wh_source *readable = argument;

	readable->ready(readable, EPOLLIN);
}

/* A session that asks what takes long does not keep the loop from the others: its turn ends. */
static void frame__turns_end(void **state)
{
	enum { FRAMES = 2000, SIZE = WH_FRAME_HEADER + 8 };
	static uint8_t bytes[FRAMES * SIZE];
	struct link link = session_link();
	unsigned before = 0;
	size_t sent = 0;

	(void)state;
	frozen_now = START;
	slow_frames = 0;
	link.session->control.frame = frame_slowly;
	for (unsigned i = 0; i < FRAMES; i++)
		wh_frame_encode(bytes + (size_t)i * SIZE,
				&(struct wh_frame){ 8, WH_FRAME_PING, 0 });
	sent = (size_t)write(link.there, bytes, sizeof(bytes));
	assert_int_equal(sent, sizeof(bytes));
	while (slow_frames < FRAMES) {
		wh_loop_call(&engine->loops[0], turn, &link.session->control.source);
		assert_true(slow_frames > before);
		assert_true(slow_frames - before <= 16384 / SIZE);
		before = slow_frames;
	}
	frozen_now = 0;
	link_close(&link);
}

/* What an owner sends, and what begins a connection. */
static void frame__not_from_an_initiator(void **state)
{
	static const uint16_t types[] = {
		WH_FRAME_HELLO,    WH_FRAME_WELCOME, WH_FRAME_REFUSED, WH_FRAME_REGIONS,
		WH_FRAME_REMOVE,   WH_FRAME_PONG,    WH_FRAME_ABORTED, WH_FRAME_NOTIFIED,
		WH_FRAME_PROVE,    WH_FRAME_MAP,     WH_FRAME_ALIVE,   WH_FRAME_REGISTERED,
		WH_FRAME_TYPE_END,
	};
	struct link link = session_link();

	(void)state;
	for (unsigned i = 0; i < sizeof(types) / sizeof(types[0]); i++)
		assert_int_equal(give_number(&link, types[i], 1, 8), -EPROTO);
	/* One more than a notification can have, and one less than its head. */
	assert_int_equal(give_number(&link, WH_FRAME_NOTIFY, 1, WH_NOTIFY_HEAD - 1), -EPROTO);
	assert_int_equal(give_number(&link, WH_FRAME_REMOVED, 1, 8), -EPROTO);
	assert_int_equal(give_number(&link, WH_FRAME_LOOKUP, 1, 8), -EPROTO);
	link_quiet(&link);
	link_close(&link);
}

static unsigned handled;
static int handled_error;

static int on_frame(struct wh_session *session, const struct wh_frame *frame,
		    const uint8_t *payload)
{
	(void)session;
	assert_int_equal(frame->length, 8);
	assert_int_equal(wh_get64(payload), 5);
	handled = frame->type;
	return handled_error;
}

static void frame__of_a_transport(void **state)
{
	const uint16_t first = wh_transport_rdma.frame_first, end = wh_transport_rdma.frame_end;
	struct link link = session_link();

	(void)state;
	fake_table(WH_TRANSPORT_RDMA)->session_frame = on_frame;
	for (handled_error = -ENOMEM; handled_error <= 0; handled_error += ENOMEM) {
		assert_int_equal(give_number(&link, first, 5, 8), handled_error);
		assert_int_equal(handled, first);
		assert_int_equal(give_number(&link, end - 1, 5, 8), handled_error);
		assert_int_equal(handled, end - 1);
	}
	assert_int_equal(give_number(&link, end, 5, 8), -EPROTO);
	/* One that is switched off did not offer its frames. */
	snprintf(engine->transport_off[WH_TRANSPORT_RDMA], WH_REFUSAL, "off");
	assert_int_equal(give_number(&link, first, 5, 8), -EPROTO);
	assert_int_equal(handled, end - 1);
	link_close(&link);
}

static unsigned aborts;
static int abort_error;

static int on_abort(struct wh_session *session, uint32_t number)
{
	(void)session;
	assert_int_equal(number, 3);
	aborts++;
	return abort_error;
}

/* Confirmed when every transport has let go; never if one has not: that ends the session. */
static void frame__abort(void **state)
{
	struct link link = session_link();

	(void)state;
	for (unsigned i = 0; i < FAKES; i++)
		fake_table(fake_order[i])->session_abort = on_abort;
	assert_int_equal(give_number(&link, WH_FRAME_ABORT, 3, 7), -EPROTO);
	assert_int_equal(give_number(&link, WH_FRAME_ABORT, 3, 9), -EPROTO);
	assert_int_equal(aborts, 0);
	link_quiet(&link);
	assert_int_equal(give_number(&link, WH_FRAME_ABORT, 3, 8), 0);
	assert_int_equal(aborts, FAKES);
	link_number(&link, WH_FRAME_ABORTED, 3);
	aborts = 0;
	abort_error = -EBUSY;
	assert_int_equal(give_number(&link, WH_FRAME_ABORT, 3, 8), -EBUSY);
	assert_int_equal(aborts, 1);
	link_quiet(&link);
	abort_error = 0;
	link_close(&link);
}

/* ---- the end ------------------------------------------------------------------------------- */

static void pass(int64_t to)
{
	frozen_now = to;
	settle();
}

static void watch__silence(int64_t timeout, int64_t patience)
{
	struct link link;

	frozen_now = START;
	fake_logs();
	engine->config.number[WH_SETTING_TIMEOUT] = timeout;
	link = session_link();
	pass(START + patience);
	assert_int_equal(engine->session_count, 1);
	/* What is heard begins it anew. */
	assert_int_equal(give_number(&link, WH_FRAME_PING, 1, 8), 0);
	pass(START + 2 * patience);
	assert_int_equal(engine->session_count, 1);
	pass(START + 2 * patience + WH_MS);
	assert_int_equal(engine->session_count, 0);
	logged("has left: nothing was received for too long");
	assert_int_equal(recv(link.there, frame_bytes, WH_FRAME_HEADER + 8, 0), 16); /* PONG */
	assert_int_equal(recv(link.there, frame_bytes, 1, 0), 0);
	close(link.there);
	frozen_now = 0;
}

/* Twice the timeout, and 10 s at least: the other engine's pings do not follow ours. */
static void watch__silence_of_ten_seconds(void **state)
{
	(void)state;
	watch__silence(1000, 10 * WH_SECOND);
	watch__silence(4999, 10 * WH_SECOND);
}

static void watch__silence_of_twice_the_timeout(void **state)
{
	(void)state;
	watch__silence(6000, 12 * WH_SECOND);
}

static unsigned ending, closed;
static const struct wh_session *counting;

/* Whoever unregisters a region still waits for the session. */
static void on_ending(struct wh_session *session)
{
	assert_ptr_equal(wh_session_find(engine, session->id), session);
	assert_int_equal(engine->session_count, 1);
	ending++;
}

/* A transport may count until it has closed the session. */
static void on_close(struct wh_session *session)
{
	assert_ptr_equal(session, counting);
	assert_null(wh_session_find(engine, session->id));
	assert_int_equal(engine->session_count, 0);
	wh_session_count(session, WH_WRITE, 30);
	closed++;
}

static void end__counts_what_was_served(void **state)
{
	struct link link = session_link();
	uint64_t *bytes = engine->statistics.served_bytes;

	(void)state;
	for (unsigned i = 0; i < FAKES; i++) {
		fake_table(fake_order[i])->session_ending = on_ending;
		fake_table(fake_order[i])->session_close = on_close;
	}
	counting = link.session;
	wh_session_count(link.session, WH_READ, 1000);
	wh_session_count(link.session, WH_WRITE, 7);
	link_close(&link);
	assert_int_equal(ending, FAKES);
	assert_int_equal(closed, FAKES);
	assert_int_equal(bytes[0], 1000);
	assert_int_equal(bytes[1], 7 + 30 * FAKES);
	assert_int_equal(engine->statistics.served_requests, 2 + FAKES);
	for (unsigned i = 0; i < FAKES; i++) {
		fake_table(fake_order[i])->session_ending =
			wh_transport(WH_TRANSPORT_SELF)->session_ending;
		fake_table(fake_order[i])->session_close =
			wh_transport(WH_TRANSPORT_SELF)->session_close;
	}
}

static void break_off(void *argument)
{
	struct wh_session *session = wh_session_find(engine, guest.id);

	session->control.gone(&session->control, *(int *)argument, "sent nonsense");
}

/* Damaged bytes are counted, other ends of a connection are not. */
static void gone__damage(void **state)
{
	int errors[] = { -EBADMSG, -ECONNRESET };

	(void)state;
	for (unsigned i = 0; i < 2; i++) {
		fake_logs();
		assert_int_equal(begin(7), 0);
		wh_loop_call(&engine->loops[0], break_off, &errors[i]);
		logged("2 session: guest has left: sent nonsense");
		assert_int_equal(wh_count_get(&engine->statistics.damaged), 1);
		assert_int_equal(!strstr(fake_log, "guest sent nonsense; the connection is cut"),
				 i);
		none_left();
		close(guest.there);
	}
}

/* The initiator closes its end. */
static void gone__closed(void **state)
{
	struct link link = session_link();

	(void)state;
	fake_logs();
	close(link.there);
	settle();
	assert_int_equal(engine->session_count, 0);
	logged("has left: ");
}

/* ---- staging and rights -------------------------------------------------------------------- */

static bool on_reaches(const struct wh_session *session)
{
	(void)session;
	return true;
}

static bool stages(void)
{
	struct link link = session_link();
	bool stages = link.session->stages;

	link_close(&link);
	return stages;
}

/* Buffers are prepared if a transport uses them and none reaches the GPUs without. */
static void stages__at_the_beginning(void **state)
{
	(void)state;
	assert_false(stages());
	fake_table(WH_TRANSPORT_TCP)->capabilities |= WH_USES_STAGING;
	assert_true(stages());
	fake_table(WH_TRANSPORT_RDMA)->session_reaches_gpus = on_reaches;
	assert_false(stages());
	snprintf(engine->transport_off[WH_TRANSPORT_RDMA], WH_REFUSAL, "off");
	assert_true(stages());
	snprintf(engine->transport_off[WH_TRANSPORT_TCP], WH_REFUSAL, "off");
	assert_false(stages());
}

static void access__by_name(void **state)
{
	struct link link = session_link();
	const struct wh_grant grant = { .peer = link.session->hello.name,
					.access = WH_ACCESS_WRITE };
	const struct wh_region_options options = {
		.size = sizeof(options),
		.access = WH_ACCESS_READ,
		.grant_count = 1,
		.grants = &grant,
	};
	struct wh_region *region;

	(void)state;
	assert_int_equal(wh_region_register(engine, source, 64, &options, &region), 0);
	assert_int_equal(wh_session_access(link.session, &region->entry), WH_ACCESS_WRITE);
	link.session->hello.name[0] = 'x';
	assert_int_equal(wh_session_access(link.session, &region->entry), WH_ACCESS_READ);
	assert_int_equal(wh_session_access(link.session, &here->entry), 0);
	assert_int_equal(wh_region_unregister(region), 0);
	link_close(&link);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		TEST(new__is_known_and_counted),
		TEST(new__too_many),
		TEST(new__no_memory),
		TEST(new__no_connection),
		TEST(new__name_of_the_channel),
		TEST(frame__ping),
		TEST(frame__turns_end),
		TEST(frame__not_from_an_initiator),
		TEST(frame__of_a_transport),
		TEST(frame__abort),
		TEST(watch__silence_of_ten_seconds),
		TEST(watch__silence_of_twice_the_timeout),
		TEST(end__counts_what_was_served),
		TEST(gone__damage),
		TEST(gone__closed),
		TEST(stages__at_the_beginning),
		TEST(access__by_name),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
