/* SPDX-License-Identifier: Apache-2.0 */
/* Setup: waits hostile */
/* hostile-notify.c: a hostile peer writes to an owner's receive ring by hand
 *
 * Invalid bytes and immediates end the peer's own session and harm nobody else. */
#include <arpa/inet.h>
#include <dlfcn.h>

#include "lib/duo.h"
#include "lib/raw.h"
#include "platform/verbs-abi.h"
#include "transport/rdma/wire.h"
#include "wire/bytes.h"

#define SOON 60000 /* ms; ends a test that hangs */
#define NUMBER 0x80000001u

static struct side owner;
static struct note got;

/* Our end: a NIC's queue pair, and the memory for composed notifications. */
struct end {
	int fd;
	struct ibv_context *context;
	struct ibv_pd *pd;
	struct ibv_cq *cq;
	struct ibv_qp *qp;
	struct ibv_mr *mr;
	uint8_t bytes[WH_RDMA_RING_SLOT];
	struct wh_rdma_ring_opened ring;
	uint32_t nic; /* the owner's NIC */
};

static void *verbs_symbol(const char *name)
{
	static void *library;

	if (!library)
		library = dlopen(getenv("TEST_VERBS"), RTLD_NOW | RTLD_NODELETE);
	return library ? dlsym(library, name) : NULL;
}

#define VERBS(result, name, types, ...) (((result(*) types)verbs_symbol("ibv_" #name))(__VA_ARGS__))

static void owner_open(const char *more)
{
	side_open(&owner, WH_MEMORY_PAGEABLE, "target", "127.0.0.1:0",
		  (const char *[]){ "rdma=fake1", PATIENT, more, NULL });
}

static int receive_frame(int fd, uint16_t type, uint8_t *bytes, size_t room)
{
	struct wh_frame frame;
	int length = raw_receive_frame(fd, &frame, bytes, room);

	want_true(length >= 0 && frame.type == type, "frame %d of %d bytes, not %d", frame.type,
		  length, type);
	return length;
}

/* Create a queue pair of the first NIC, ready to connect to an owner's. */
static void end_make_qp(struct end *end)
{
	struct ibv_qp_init_attr wanted = {
		.qp_type = IBV_QPT_RC,
		.cap = { .max_send_wr = 64, .max_recv_wr = 1, .max_send_sge = 1, .max_recv_sge = 1 }
	};
	struct ibv_qp_attr first = { .qp_state = IBV_QPS_INIT, .pkey_index = 1, .port_num = 1 };
	struct ibv_device **list;
	int count;

	list = VERBS(struct ibv_device **, get_device_list, (int *), &count);
	end->context = VERBS(struct ibv_context *, open_device, (struct ibv_device *), list[0]);
	VERBS(void, free_device_list, (struct ibv_device **), list);
	end->pd = VERBS(struct ibv_pd *, alloc_pd, (struct ibv_context *), end->context);
	end->cq =
		VERBS(struct ibv_cq *, create_cq, (struct ibv_context *, int, void *, void *, int),
		      end->context, 128, NULL, NULL, 0);
	end->mr = VERBS(struct ibv_mr *, reg_mr, (struct ibv_pd *, void *, size_t, int), end->pd,
			end->bytes, sizeof(end->bytes), 0);
	wanted.send_cq = wanted.recv_cq = end->cq;
	end->qp = VERBS(struct ibv_qp *, create_qp, (struct ibv_pd *, struct ibv_qp_init_attr *),
			end->pd, &wanted);
	assert_non_null(end->qp);
	want(0, VERBS(int, modify_qp, (struct ibv_qp *, struct ibv_qp_attr *, int), end->qp, &first,
		      IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS));
}

static void connect_to(struct end *end, const struct wh_rdma_end *theirs)
{
	struct ibv_qp_attr attributes = { .qp_state = IBV_QPS_RTR,
					  .path_mtu = 3,
					  .dest_qp_num = theirs->qp,
					  .ah_attr = { .is_global = 1, .port_num = 1 } };

	memcpy(attributes.ah_attr.grh.dgid.raw, theirs->gid, 16);
	attributes.ah_attr.grh.sgid_index = 1;
	want(0, VERBS(int, modify_qp, (struct ibv_qp *, struct ibv_qp_attr *, int), end->qp,
		      &attributes,
		      IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN |
			      IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER));
	attributes.qp_state = IBV_QPS_RTS;
	want(0, VERBS(int, modify_qp, (struct ibv_qp *, struct ibv_qp_attr *, int), end->qp,
		      &attributes,
		      IBV_QP_STATE | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY |
			      IBV_QP_SQ_PSN | IBV_QP_MAX_QP_RD_ATOMIC));
}

static void end_open_session(struct end *end)
{
	struct wh_rdma_connect wanted = { .number = NUMBER,
					  .end = { .link = WH_RDMA_ETHERNET,
						   .gid_type = 2,
						   .mtu = 3,
						   .responder_resources = 1,
						   .initiator_depth = 1,
						   .gid = { [10] = 0xff, 0xff, 10, 77, 0, 1 },
						   .name = "fake0:1" } };
	uint8_t bytes[WH_RDMA_CONNECT_MAX], answer[WH_RDMA_CONNECTED_MAX];
	struct wh_rdma_connected connected;
	struct wh_hello welcome;
	int length;

	memset(end, 0, sizeof(*end));
	end->fd = raw_control(wh_engine_url(owner.engine), &welcome);
	want_true(end->fd >= 0, "no session");
	want_true(welcome.capabilities & WH_CAPABLE_RDMA_NOTIFY,
		  "the owner takes no notifications by NIC");
	want_true(raw_count_regions(end->fd) >= 1, "no regions");
	end_make_qp(end);
	wanted.end.qp = end->qp->qp_num;
	want(0, raw_send_frame(end->fd, WH_FRAME_RDMA_CONNECT, 0, bytes,
			       wh_rdma_connect_encode(bytes, &wanted)));
	length = receive_frame(end->fd, WH_FRAME_RDMA_CONNECTED, answer, sizeof(answer));
	want(0, wh_rdma_connected_decode(answer, (size_t)length, &connected));
	want_true(!connected.error, "%s", connected.text);
	end->nic = connected.nic;
	connect_to(end, &connected.end);
}

static int open_ring(struct end *end)
{
	uint8_t bytes[WH_RDMA_RING_OPENED_MAX];
	int length;

	want(0, raw_send_frame(end->fd, WH_FRAME_RDMA_RING_OPEN, 0, NULL, 0));
	length = receive_frame(end->fd, WH_FRAME_RDMA_RING_OPENED, bytes, sizeof(bytes));
	want(0, wh_rdma_ring_opened_decode(bytes, (size_t)length, &end->ring));
	return end->ring.error;
}

static void session_with_ring(struct end *end)
{
	end_open_session(end);
	want(0, open_ring(end));
	want(1, end->ring.count);
	want(end->nic, end->ring.keys[0].nic);
}

static void session_end(struct end *end)
{
	want(0, VERBS(int, destroy_qp, (struct ibv_qp *), end->qp));
	want(0, VERBS(int, dereg_mr, (struct ibv_mr *), end->mr));
	want(0, VERBS(int, destroy_cq, (struct ibv_cq *), end->cq));
	want(0, VERBS(int, dealloc_pd, (struct ibv_pd *), end->pd));
	want(0, VERBS(int, close_device, (struct ibv_context *), end->context));
	close(end->fd);
}

/* Write `length` of our bytes to the receive ring at `offset`, with an immediate. The status. */
static int end_post(struct end *end, uint64_t offset, uint32_t length, uint32_t imm)
{
	struct ibv_sge segment = { (uintptr_t)end->bytes, length, end->mr->lkey };
	struct ibv_send_wr request = { .sg_list = &segment,
				       .num_sge = length ? 1 : 0,
				       .opcode = IBV_WR_RDMA_WRITE_WITH_IMM,
				       .send_flags = IBV_SEND_SIGNALED,
				       .imm_data = htonl(imm) },
			   *bad;
	int64_t until = now() + PATIENCE;
	struct ibv_wc wc;

	request.wr.rdma.remote_addr = end->ring.address + offset;
	request.wr.rdma.rkey = end->ring.keys[0].key;
	want(0, end->context->ops.post_send(end->qp, &request, &bad));
	while (!end->context->ops.poll_cq(end->cq, 1, &wc))
		want_true(now() < until, "it does not complete");
	return wc.status;
}

static void end_compose(struct end *end, uint64_t sequence, uint32_t length)
{
	wh_rdma_notification_encode(end->bytes, &(struct wh_rdma_notification){
							.sequence = sequence, .length = length });
	memset(end->bytes + WH_RDMA_NOTIFICATION_HEAD, 'x', 64);
}

/* Send a valid notification; wait for its confirmation. */
static void send_good(struct end *end, uint32_t slot, uint64_t sequence)
{
	uint8_t confirmed[8];

	end_compose(end, sequence, 64);
	want(0, end_post(end, slot * (uint64_t)WH_RDMA_RING_SLOT, WH_RDMA_NOTIFICATION_HEAD + 64,
			 wh_rdma_imm(slot, sequence)));
	want(8, receive_frame(end->fd, WH_FRAME_NOTIFIED, confirmed, sizeof(confirmed)));
	want(sequence, wh_get64(confirmed));
	want(0, note_take(owner.engine, &got, PATIENCE));
	want(64, got.length);
}

static void want_closed(struct end *end)
{
	want_true(raw_closes(end->fd, SOON), "it is still open");
	session_end(end);
}

static void want_alive(const struct end *end)
{
	uint8_t token[8] = { 1 };

	want(0, raw_send_frame(end->fd, WH_FRAME_PING, 0, token, sizeof(token)));
	want(8, receive_frame(end->fd, WH_FRAME_PONG, token, sizeof(token)));
}

/* ---- tests ------------------------------------------------------------- */

static void order__wrong(void **state)
{
	struct wh_hello welcome;
	struct end end;
	int fd;

	(void)state;
	owner_open(NULL);
	fd = raw_control(wh_engine_url(owner.engine), &welcome); /* without a queue pair */
	want(0, raw_send_frame(fd, WH_FRAME_RDMA_RING_OPEN, 0, NULL, 0));
	want_true(raw_closes(fd, SOON), "it is still open");
	close(fd);
	end_open_session(&end); /* with a payload */
	want(0, raw_send_frame(end.fd, WH_FRAME_RDMA_RING_OPEN, 0, "1234", 4));
	want_closed(&end);
	session_with_ring(&end); /* a second one */
	want(0, raw_send_frame(end.fd, WH_FRAME_RDMA_RING_OPEN, 0, NULL, 0));
	want_closed(&end);
	end_open_session(&end); /* no receive ring */
	want(0, end_post(&end, 0, 0, wh_rdma_imm(0, 1)));
	want_closed(&end);
	side_close(&owner);
}

static void letter__of_nonsense(void **state)
{
	static const struct {
		uint32_t slot, length;
		uint64_t sequence, announced;
	} wrong[] = {
		{ WH_RDMA_RING_SLOTS, 64, 8, 8 },
		{ 255, 64, 8, 8 },
		{ 15, WH_RDMA_NOTIFICATION_MAX + 1, 8, 8 },
		{ 0, UINT32_MAX, 8, 8 },
		{ 0, 64, 8, 9 },
		{ 0, 64, 7, 7 },
		{ 0, 64, 0, 0 },
	};
	struct end end, other;

	(void)state;
	owner_open(NULL);
	session_with_ring(&other);
	for (unsigned i = 0; i < sizeof(wrong) / sizeof(wrong[0]); i++) {
		session_with_ring(&end);
		send_good(&end, i, 7);
		end_compose(&end, wrong[i].sequence, wrong[i].length);
		want(0, end_post(&end, (wrong[i].slot & 15) * (uint64_t)WH_RDMA_RING_SLOT,
				 WH_RDMA_NOTIFICATION_HEAD,
				 wh_rdma_imm(wrong[i].slot, wrong[i].announced)));
		want_closed(&end);
		send_good(&other, i, 100 + i);
	}
	session_with_ring(&end); /* again; it still occupies its slot */
	send_good(&end, 3, 7);
	want(0, end_post(&end, 0, 0, wh_rdma_imm(3, 7)));
	want_closed(&end);
	want(-EAGAIN, note_take(owner.engine, &got, 0));
	want_alive(&other);
	session_end(&other);
	side_close(&owner);
}

/* More than may be unconfirmed. Another session still gets its slots. */
static void letter__too_many(void **state)
{
	struct end end, other;
	uint8_t confirmed[8];

	(void)state;
	owner_open("notifications=1");
	session_with_ring(&other);
	session_with_ring(&end);
	for (uint64_t i = 1; i <= 2 + WH_RDMA_RING_SLOTS; i++) {
		uint32_t slot = i % WH_RDMA_RING_SLOTS;

		while (nics_receives(end.qp) != WH_RDMA_RING_SLOTS) /* at the owner's pace */
			sleep_ms(1);
		end_compose(&end, i, 64);
		if (end_post(&end, slot * (uint64_t)WH_RDMA_RING_SLOT,
			     WH_RDMA_NOTIFICATION_HEAD + 64, wh_rdma_imm(slot, i)))
			fail_msg("notification %llu is refused", (unsigned long long)i);
		if (i == 1)
			want(8, receive_frame(end.fd, WH_FRAME_NOTIFIED, confirmed,
					      sizeof(confirmed)));
	}
	want_closed(&end);
	want(0, note_take(owner.engine, &got, PATIENCE));
	/* the session's other notifications went with it */
	want(-EAGAIN, note_take(owner.engine, &got, 0));
	send_good(&other, 0, 1);
	session_end(&other);
	side_close(&owner);
	want(0, nics_underruns());
}

/* Memory after the receive ring is not writable: the queue pair fails, and with it its receives. */
static void mailbox__outside(void **state)
{
	uint8_t number[8], bytes[8];
	struct end end;

	(void)state;
	owner_open(NULL);
	session_with_ring(&end);
	send_good(&end, 15, 1);
	want(10, end_post(&end, WH_RDMA_RING_SLOTS * (uint64_t)WH_RDMA_RING_SLOT - 8, 16,
			  wh_rdma_imm(0, 2)));
	want_alive(&end);
	sleep_ms(20);
	wh_put64(number, NUMBER);
	want(0, raw_send_frame(end.fd, WH_FRAME_ABORT, 0, number, sizeof(number)));
	want(8, receive_frame(end.fd, WH_FRAME_ABORTED, bytes, sizeof(bytes)));
	want_alive(&end);
	session_end(&end);
	side_close(&owner);
}

/* The keys of a session are invalid after its end. */
static void mailbox__afterwards(void **state)
{
	int64_t until = now() + PATIENCE;
	struct end end, late;
	unsigned int pairs;

	(void)state;
	owner_open(NULL);
	session_with_ring(&end);
	end_open_session(&late);
	late.ring = end.ring;
	pairs = nics_pairs();
	session_end(&end);
	while (nics_pairs() > pairs - 2 && now() < until) /* the owner's queue pair is gone, too */
		sleep_ms(5);
	want_alive(&late); /* the owner has handled the end of the other session */
	want(10, end_post(&late, 0, 16, wh_rdma_imm(0, 1)));
	want_alive(&late);
	session_end(&late);
	side_close(&owner);
}

/* Memory for receive rings is charged to the quota of the client's address. */
static void mailbox__held(void **state)
{
	enum { MOST = 15 }; /* fit into 1 MiB */
	int64_t until = now() + PATIENCE;
	struct end ends[MOST + 1];
	int error;

	(void)state;
	owner_open("max_buffered=1MiB");
	for (unsigned i = 0; i < MOST; i++)
		session_with_ring(&ends[i]);
	end_open_session(&ends[MOST]);
	want(-EBUSY, open_ring(&ends[MOST]));
	session_end(&ends[0]);
	while ((error = open_ring(&ends[MOST])) == -EBUSY &&
	       now() < until) /* a refused client may ask again */
		sleep_ms(5);
	want(0, error);
	for (unsigned i = 1; i <= MOST; i++)
		session_end(&ends[i]);
	side_close(&owner);
}

static int64_t worked(void)
{
	struct timespec at;

	want(0, clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &at));
	return at.tv_sec * SECOND + at.tv_nsec;
}

/* The owner's NIC is removed while its queue pairs wait for notifications. The NIC's descriptors
 * stay readable for ever; the engine stops polling them. */
static void mailbox__nic_removed(void **state)
{
	struct end end;
	int64_t before;

	(void)state;
	owner_open(NULL);
	session_with_ring(&end);
	send_good(&end, 0, 1);
	nic_remove(1);
	sleep_ms(20);
	before = worked();
	sleep_ms(300);
	want_true(worked() - before < 100 * MS, "it takes %lld ms of 300",
		  (worked() - before) / MS);
	want_alive(&end);
	session_end(&end);
	side_close(&owner);
}

static const struct CMUnitTest tests[] = {
	TEST_NEEDS(order__wrong, needs_nics),         TEST_NEEDS(letter__of_nonsense, needs_nics),
	TEST_NEEDS(letter__too_many, needs_nics),     TEST_NEEDS(mailbox__outside, needs_nics),
	TEST_NEEDS(mailbox__afterwards, needs_nics),  TEST_NEEDS(mailbox__held, needs_nics),
	TEST_NEEDS(mailbox__nic_removed, needs_nics),
};

HARNESS_MAIN("hostile-notify", tests)
