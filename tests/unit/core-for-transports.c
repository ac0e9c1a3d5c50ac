/* SPDX-License-Identifier: Apache-2.0 */
/* for-transports.c and warning.c: what transports are told, and what is said once when bytes take a
 * slower path */
#include "core-link.h"
#include "core/warning.h"

/* ---- how near, and where ------------------------------------------------------------------- */

/* Another engine of this machine and network namespace. */
static struct wh_hello hello_here(void)
{
	struct wh_hello hello = { 0 };

	memcpy(hello.host, engine->identity.host, sizeof(hello.host));
	return hello;
}

static void nearness__by_each_half(void **state)
{
	struct wh_hello other = hello_here();

	(void)state;
	assert_int_equal(wh_engine_nearness(engine, &other), WH_SAME_NETWORK);
	other.host[7] ^= 1;
	assert_int_equal(wh_engine_nearness(engine, &other), WH_SAME_MACHINE);
	other.host[15] ^= 1;
	assert_int_equal(wh_engine_nearness(engine, &other), WH_ELSEWHERE);
	other.host[7] ^= 1;
	assert_int_equal(wh_engine_nearness(engine, &other), WH_ELSEWHERE);
	other.host[15] ^= 1;
	other.host[8] ^= 1;
	assert_int_equal(wh_engine_nearness(engine, &other), WH_ELSEWHERE);
}

/* In another container it takes a folder of both. */
static void is_met__by_the_socket(void **state)
{
	struct wh_hello network = hello_here(), machine = hello_here(), far = hello_here();

	(void)state;
	machine.host[0] ^= 1;
	far.host[15] ^= 1;
	engine->identity.socket[0] = 0;
	engine->identity.capabilities |= WH_CAPABLE_MEET;
	assert_false(wh_engine_is_met(engine, &network));
	engine->identity.socket[0] = 'x';
	assert_true(wh_engine_is_met(engine, &network));
	assert_true(wh_engine_is_met(engine, &machine));
	assert_false(wh_engine_is_met(engine, &far));
	engine->identity.capabilities &= ~WH_CAPABLE_MEET;
	assert_true(wh_engine_is_met(engine, &network));
	assert_false(wh_engine_is_met(engine, &machine));
}

/* Either side can ask for records. */
static void has_records__of_both(void **state)
{
	struct wh_peer *peer = peer_new("far");

	(void)state;
	engine->identity.capabilities = WH_CAPABLE_RECORDS;
	peer->welcome.capabilities = WH_CAPABLE_RECORDS;
	assert_false(wh_peer_has_records(peer));
	peer->welcome.capabilities |= WH_WANTS_RECORDS;
	assert_true(wh_peer_has_records(peer));
	peer->welcome.capabilities = 0;
	engine->identity.capabilities |= WH_WANTS_RECORDS;
	assert_true(wh_peer_has_records(peer));
	peer_drop(peer);
}

static void address__tried_last(void **state)
{
	struct wh_peer *peer = peer_new("far");
	struct sockaddr_storage out = { .ss_family = AF_UNSPEC };

	(void)state;
	peer->address[0].ss_family = AF_INET;
	peer->address[1].ss_family = AF_INET6;
	assert_false(wh_peer_address(peer, &out));
	assert_int_equal(out.ss_family, AF_UNSPEC);
	peer->address_next = 2;
	assert_true(wh_peer_address(peer, &out));
	assert_int_equal(out.ss_family, AF_INET6);
	peer->address_next = 1;
	assert_true(wh_peer_address(peer, &out));
	assert_int_equal(out.ss_family, AF_INET);
	peer_drop(peer);
}

static void transport__while_it_is_open(void **state)
{
	uint32_t version = atomic_load(&self->plan_version);

	(void)state;
	assert_ptr_equal(wh_peer_transport(self, WH_TRANSPORT_SHM), SHM);
	atomic_store(&self->opened[WH_TRANSPORT_SHM], false);
	assert_null(wh_peer_transport(self, WH_TRANSPORT_SHM));
	wh_peer_replan(self);
	assert_int_equal(atomic_load(&self->plan_version), version + 1);
}

/* ---- sessions ------------------------------------------------------------------------------ */

/* Slots are lent once. */
static void lend__once(void **state)
{
	struct link link = session_link();
	struct wh_lent *one = (struct wh_lent *)source, *two = (struct wh_lent *)target;

	(void)state;
	assert_null(wh_session_lent(link.session));
	assert_int_equal(wh_session_lend(link.session, one), 0);
	assert_int_equal(wh_session_lend(link.session, two), -EALREADY);
	assert_ptr_equal(wh_session_lent(link.session), one);
	atomic_store(&link.session->lent, NULL);
	link_close(&link);
}

static void count__by_direction(void **state)
{
	struct link link = session_link();
	const struct wh_engine_statistics *statistics = &engine->statistics;
	uint64_t staged = wh_count_get(&statistics->staged_bytes);
	uint64_t connections = wh_count_get(&statistics->connections);

	(void)state;
	wh_session_count(link.session, WH_READ, 10);
	wh_session_count(link.session, WH_WRITE, 300);
	wh_session_count(link.session, WH_WRITE, 1);
	assert_int_equal(wh_count_get(&link.session->served.bytes[0]), 10);
	assert_int_equal(wh_count_get(&link.session->served.bytes[1]), 301);
	assert_int_equal(wh_count_get(&link.session->served.requests), 3);
	wh_engine_count_staged(engine, 77);
	wh_engine_count_connection(engine);
	assert_int_equal(wh_count_get(&statistics->staged_bytes), staged + 77);
	assert_int_equal(wh_count_get(&statistics->connections), connections + 1);
	link_close(&link);
}

/* ---- batches ------------------------------------------------------------------------------- */

/* Those of a transport, or all; a fragment can go on by another one. */
static void fragment__of_each(void **state)
{
	struct wh_batch *batch = batch_of(100);
	struct wh_fragment *first, *second;

	(void)state;
	add(batch, WH_READ, 200, 50);
	assert_int_equal(wh_batch_submit(batch), 0);
	assert_int_equal(batch->fragment_count, 2);
	first = &batch->fragments[0];
	second = &batch->fragments[1];
	assert_ptr_equal(wh_batch_fragment(batch, WH_TRANSPORT_RDMA, NULL), first);
	assert_ptr_equal(wh_batch_fragment(batch, WH_TRANSPORT_RDMA, first), second);
	assert_null(wh_batch_fragment(batch, WH_TRANSPORT_RDMA, second));
	assert_null(wh_batch_fragment(batch, WH_TRANSPORT_SHM, NULL));
	atomic_store(&second->transport, WH_TRANSPORT_SHM);
	assert_null(wh_batch_fragment(batch, WH_TRANSPORT_RDMA, first));
	assert_ptr_equal(wh_batch_fragment(batch, WH_TRANSPORT_SHM, NULL), second);
	assert_ptr_equal(wh_batch_fragment(batch, WH_TRANSPORT_COUNT, NULL), first);
	assert_ptr_equal(wh_batch_fragment(batch, WH_TRANSPORT_COUNT, first), second);
	assert_null(wh_batch_fragment(batch, WH_TRANSPORT_COUNT, second));
	atomic_store(&second->transport, WH_TRANSPORT_RDMA);
	assert_true(wh_batch_is_running(batch));
	fake_end(RDMA, 0);
	fake_end(RDMA, 0);
	assert_false(wh_batch_is_running(batch));
	drop_batch(batch);
}

static void on_end(struct wh_batch *batch, int status, void *argument)
{
	(void)batch;
	(void)status;
	(void)argument;
}

/* Nobody is expected to wait for one that ends in a callback, a queue or a stream. */
static void has_waiter__where_it_ends(void **state)
{
	struct wh_batch *batch = batch_new();
	struct wh_stream_dependency *stream = (struct wh_stream_dependency *)source;

	(void)state;
	assert_true(wh_batch_has_waiter(batch));
	batch->callback = on_end;
	assert_false(wh_batch_has_waiter(batch));
	batch->callback = NULL;
	batch->queue = (struct wh_queue *)source;
	assert_false(wh_batch_has_waiter(batch));
	batch->queue = NULL;
	atomic_store(&batch->dependency, stream);
	assert_false(wh_batch_has_waiter(batch));
	atomic_store(&batch->dependency, NULL);
	drop_batch(batch);
}

static void note__none_or_empty(void **state)
{
	struct wh_batch *batch = batch_of(8);
	size_t length = 99;

	(void)state;
	assert_null(wh_batch_note(batch, &length));
	assert_int_equal(length, 99);
	assert_int_equal(wh_batch_notify(batch, 7, "", 0), 0);
	assert_non_null(wh_batch_note(batch, &length));
	assert_int_equal(length, 0);
	assert_int_equal(wh_batch_tag(batch), 7);
	assert_int_equal(wh_batch_notify(batch, 8, "done", 4), 0);
	assert_memory_equal(wh_batch_note(batch, &length), "done", 4);
	assert_int_equal(length, 4);
	assert_int_equal(wh_batch_tag(batch), 8);
	drop_batch(batch);
}

/* ---- warnings: a transport for a peer ------------------------------------------------------ */

static bool was_logged(const char *text)
{
	bool was = strstr(fake_log, text) != NULL;

	fake_log[0] = 0;
	return was;
}

/* Each reason once, whichever peer it is for; what follows is no warning. */
static void refused__each_reason_once(void **state)
{
	struct wh_peer *one = peer_new("one"), *two = peer_new("two");
	char why[32];

	(void)state;
	fake_logs();
	for (unsigned i = 0; i < WH_WARNINGS; i++) {
		snprintf(why, sizeof(why), "reason %u", i);
		wh_warning_refused(one, WH_TRANSPORT_SHM, why);
		assert_non_null(strstr(fake_log, "1 peer: one is on this host, but shm does not "
						 "reach it, so that bytes take a slower path: "));
		assert_true(was_logged(why));
	}
	for (unsigned i = 0; i < WH_WARNINGS; i++) {
		snprintf(why, sizeof(why), "reason %u", i);
		wh_warning_refused(two, WH_TRANSPORT_SHM, why);
		assert_non_null(strstr(fake_log, "2 peer: two: shm is refused: reason "));
		assert_true(was_logged(why));
	}
	wh_warning_refused(one, WH_TRANSPORT_SHM, "one more");
	assert_true(was_logged("1 peer: one is on this host"));
	/* One that is not for this host alone is never a surprise. */
	wh_warning_refused(one, WH_TRANSPORT_RDMA, "no port");
	assert_true(was_logged("2 peer: one: rdma is refused: no port"));
	peer_drop(one);
	peer_drop(two);
}

static void warning_of__a_local_transport(void **state)
{
	struct wh_peer *peer = peer_new("far");
	char out[WH_WARNING_MAX];

	(void)state;
	assert_false(wh_warning_of(peer, WH_TRANSPORT_SHM, true, out));
	snprintf(peer->refused[WH_TRANSPORT_SHM], WH_REFUSAL, "another user");
	snprintf(peer->refused[WH_TRANSPORT_RDMA], WH_REFUSAL, "no port");
	assert_true(wh_warning_of(peer, WH_TRANSPORT_SHM, false, out));
	assert_string_equal(out, "far is on this host, but shm does not reach it, so that bytes "
				 "take a slower path: another user");
	assert_false(wh_warning_of(peer, WH_TRANSPORT_RDMA, true, out));
	peer->not_for[WH_TRANSPORT_SHM] = true;
	assert_false(wh_warning_of(peer, WH_TRANSPORT_SHM, true, out));
	peer->not_for[WH_TRANSPORT_SHM] = false;
	snprintf(engine->transport_off[WH_TRANSPORT_SHM], WH_REFUSAL, "off");
	assert_false(wh_warning_of(peer, WH_TRANSPORT_SHM, true, out));
	peer_drop(peer);
}

static int open_error;
static unsigned closes;

static int on_open(struct wh_engine *of, void **out)
{
	(void)of;
	*out = &closes;
	return open_error;
}

static void on_close(struct wh_engine *of, void *given)
{
	(void)of;
	assert_ptr_equal(given, &closes);
	closes++;
}

/* TLS has switched rdma off: of interest where there is a NIC. */
static void plaintext__if_it_could_be_used(void **state)
{
	char out[WH_WARNING_MAX];

	(void)state;
	fake_logs();
	fake_table(WH_TRANSPORT_RDMA)->engine_open = on_open;
	fake_table(WH_TRANSPORT_RDMA)->engine_close = on_close;
	open_error = -ENODEV;
	wh_warning_plaintext(engine, WH_TRANSPORT_RDMA);
	assert_int_equal(closes, 0);
	assert_string_equal(fake_log, "");
	assert_false(wh_warning_of(self, WH_TRANSPORT_RDMA, true, out));
	open_error = 0;
	wh_warning_plaintext(engine, WH_TRANSPORT_RDMA);
	assert_int_equal(closes, 1);
	logged("1 engine: the setting tls is on and rdma does not encrypt, so rdma is not used");
	assert_true(wh_warning_of(self, WH_TRANSPORT_RDMA, true, out));
	assert_non_null(strstr(fake_log, out));
	assert_false(wh_warning_of(self, WH_TRANSPORT_RDMA, false, out));
}

/* ---- warnings: a batch --------------------------------------------------------------------- */

/* A batch to the peer, by tcp, as the other two refuse it. */
static struct wh_batch *batch_by_tcp(struct wh_peer *peer)
{
	struct wh_transfer transfer = transfer_of(WH_WRITE, 0, 16);
	struct wh_batch *batch;

	RDMA->reach = SHM->reach = -EOPNOTSUPP;
	RDMA->why = "no port";
	TCP->on_submit = FAKE_ENDS;
	transfer.remote = PEER_REGION(0);
	assert_int_equal(wh_batch_new(peer, NULL, &batch), 0);
	assert_int_equal(wh_batch_add(batch, &transfer, 1), 0);
	assert_int_equal(wh_batch_submit(batch), 0);
	assert_int_equal(wh_batch_status(batch), 0);
	return batch;
}

#define BY_TCP "far is on this host, but bytes go there by tcp: shm: not in a memfd"

static void batch__by_a_network(void **state)
{
	struct wh_peer *peer = peer_new("far");
	struct wh_batch *batch;
	char out[WH_WARNING_MAX];

	(void)state;
	fake_logs();
	peer_region(peer, 0, 4096, WH_ACCESS_WRITE);
	/* Nobody says why. */
	batch = batch_by_tcp(peer);
	assert_false(wh_warning_of_batch(batch, out));
	drop_batch(batch);
	assert_false(was_logged("on this host"));
	SHM->why = "not in a memfd";
	/* The peer was refused as a whole, which was said. */
	snprintf(peer->refused[WH_TRANSPORT_SHM], WH_REFUSAL, "another user");
	drop_batch(batch_by_tcp(peer));
	assert_false(was_logged("on this host"));
	peer->refused[WH_TRANSPORT_SHM][0] = 0;
	batch = batch_by_tcp(peer);
	assert_true(was_logged("1 batch: " BY_TCP "\n"));
	assert_true(wh_warning_of_batch(batch, out));
	assert_string_equal(out, BY_TCP);
	drop_batch(batch);
	/* Once in the log, and in each explanation. */
	batch = batch_by_tcp(peer);
	assert_false(was_logged("on this host"));
	assert_true(wh_warning_of_batch(batch, out));
	/* Another machine's bytes have to take a network. */
	peer->welcome.host[15] ^= 1;
	assert_false(wh_warning_of_batch(batch, out));
	drop_batch(batch);
	peer_drop(peer);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		TEST(nearness__by_each_half),
		TEST(is_met__by_the_socket),
		TEST(has_records__of_both),
		TEST(address__tried_last),
		TEST(transport__while_it_is_open),
		TEST(lend__once),
		TEST(count__by_direction),
		TEST(fragment__of_each),
		TEST(has_waiter__where_it_ends),
		TEST(note__none_or_empty),
		TEST(refused__each_reason_once),
		TEST(warning_of__a_local_transport),
		TEST(plaintext__if_it_could_be_used),
		TEST(batch__by_a_network),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
