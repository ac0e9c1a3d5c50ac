/* SPDX-License-Identifier: Apache-2.0 */
/* What NICs do with requests: packets, and what becomes of them. */
#include <errno.h>
#include <string.h>

#include "nic.h"

/* A packet, or many: a part of a request's bytes, or its answer. It says what it needs itself,
 * because the queue pair that sent it may be gone when it arrives. */
struct packet {
	struct pair *from; /* the initiator, also of answers */
	uint64_t number; /* of the request */
	unsigned epoch;
	int opcode, status; /* status: of an answer */
	uint32_t imm, rkey;
	uint64_t address;
	size_t offset, length, whole; /* whole: bytes of the request */
	uint8_t bytes[];
};

static int64_t latency(void)
{
	static const int64_t late[] = { SIM_MS, 50 * SIM_MS, SIM_SEC, 4 * SIM_SEC };
	int64_t ns = sim_options.latency_us * 100LL +
		     (int64_t)sim_draw_world((uint64_t)sim_options.jitter_us * 100 + 1);

	if (sim_chance(sim_options.nic_late))
		ns += (int64_t)sim_draw_world((uint64_t)late[sim_draw_world(4)]);
	return ns;
}

static int64_t wire_time(size_t length)
{
	return (int64_t)length * 8000 / sim_options.nic_mbit;
}

static bool nic_works(const struct nic *nic)
{
	return !nic->down && nic->black_until <= sim_time;
}

/* Do packets of one end reach the other? */
static bool reaches(const struct pair *from, const struct pair *to)
{
	return nic_works(from->nic) && nic_works(to->nic) &&
	       network_reaches(from->nic->host, to->nic->host);
}

/* The queue pair that a packet is for, if it is there and takes it. */
static struct pair *receiver_of(const struct pair *from)
{
	struct pair *to = pair_of(from->to.dest_qp_num);
	uint8_t gid[16];

	if (!to || !to->qp || !node_of(to->node)->alive || to->state < IBV_QPS_RTR ||
	    to->state > IBV_QPS_RTS || to->to.dest_qp_num != from->number ||
	    to->to.rq_psn != from->to.sq_psn || to->to.path_mtu != from->to.path_mtu ||
	    memcmp(nic_gid(to->nic, gid), from->to.ah_attr.grh.dgid.raw, sizeof(gid)) != 0)
		return NULL;
	return to;
}

static struct work *work_of(const struct pair *pair, uint64_t number)
{
	return &pair->works[number % pair->cap.max_send_wr];
}

/* Does the initiator still wait for this request? */
static bool awaits(const struct pair *pair, uint64_t number)
{
	return pair->qp && pair->state == IBV_QPS_RTS && node_of(pair->node)->alive &&
	       number >= pair->tail && number < pair->head;
}

/* ---- completions ----------------------------------------------------------------------------- */

static void complete(const struct pair *pair, const struct work *work, int status)
{
	struct ibv_wc wc = { .wr_id = work->wr.wr_id, .status = status, .qp_num = pair->number };

	cq_push((struct cq *)pair->qp->ibv.send_cq, &wc);
}

void pair_flush(struct pair *pair)
{
	struct cq *receives = (struct cq *)pair->qp->ibv.recv_cq;

	pair->state = IBV_QPS_ERR;
	for (; pair->tail < pair->head; pair->tail++)
		complete(pair, work_of(pair, pair->tail), IBV_WC_WR_FLUSH_ERR);
	for (; pair->taken != pair->posted; pair->taken++) {
		struct ibv_wc wc = { .wr_id = pair->receives[pair->taken % NIC_RECEIVES],
				     .status = IBV_WC_WR_FLUSH_ERR,
				     .qp_num = pair->number };

		cq_push(receives, &wc);
	}
}

/* The oldest request fails, and the queue pair with it. */
static void pair_fail(struct pair *pair, int status)
{
	sim_trace("# nic: queue pair %u of node %d fails: %d", pair->number, pair->node, status);
	sim_counts.nic_errors++;
	complete(pair, work_of(pair, pair->tail++), status);
	pair_flush(pair);
}

/* Retire what has been acknowledged, in order. */
static void pair_advance(struct pair *pair)
{
	while (pair->tail < pair->sent && work_of(pair, pair->tail)->acked) {
		const struct work *work = work_of(pair, pair->tail++);

		pair->progress_at = sim_time;
		if (work->wr.send_flags & IBV_SEND_SIGNALED)
			complete(pair, work, IBV_WC_SUCCESS);
	}
	pair_kick(pair);
}

/* ---- giving up ------------------------------------------------------------------------------- */

static void check_time(void *arg)
{
	struct pair *pair = arg;
	bool waits = pair->qp && pair->state == IBV_QPS_RTS && pair->tail < pair->sent &&
		     node_of(pair->node)->alive;

	pair->timed = waits;
	if (!waits)
		return;
	if (sim_time < pair->progress_at + pair->limit)
		event_at(pair->progress_at + pair->limit, check_time, pair);
	else if (pair->nic->down && pair->silent)
		event_at(sim_time + pair->limit, check_time, pair);
	else
		pair_fail(pair, IBV_WC_RETRY_EXC_ERR);
}

static void doom(void *arg)
{
	struct pair *pair = arg;

	if (pair->qp && pair->state == IBV_QPS_RTS && pair->tail < pair->head)
		pair_fail(pair, sim_draw_world(3) ? IBV_WC_RETRY_EXC_ERR : NIC_REMOTE_OPERATION);
}

/* A request, or its answer, was lost: everything from it on is sent again, after a while. */
static void pair_again(struct pair *pair, uint64_t number)
{
	pair->epoch++;
	if (!awaits(pair, number))
		return;
	pair->sent = number < pair->sent ? number : pair->sent;
	pair->pause_until = sim_time + (4096LL << pair->to.timeout);
	pair_kick(pair);
}

/* ---- answers --------------------------------------------------------------------------------- */

static void read_land(struct pair *pair, struct work *work, const struct packet *packet)
{
	size_t skip = packet->offset, left = packet->length;
	const uint8_t *bytes = packet->bytes;

	for (int i = 0; i < work->wr.num_sge && left; i++) {
		const struct ibv_sge *sge = &work->sges[i];
		size_t part = sge->length > skip ? sge->length - skip : 0;
		struct mr *mr;

		part = part < left ? part : left;
		if (part) {
			mr = mr_find(sge->lkey, sge->addr + skip, part, IBV_ACCESS_LOCAL_WRITE);
			if (!mr || mr->ibv.pd != pair->qp->ibv.pd)
				sim_fail("nic",
					 "a read of node %d lands under a key that is not "
					 "valid",
					 pair->node);
			memcpy((void *)(uintptr_t)(sge->addr + skip), bytes, part);
			sim_counts.nic_bytes += part;
		}
		skip = skip > sge->length ? skip - sge->length : 0;
		bytes += part;
		left -= part;
	}
}

/* An answer arrives at the initiator. */
static void answer_arrives(void *arg)
{
	struct packet *packet = arg;
	struct pair *pair = packet->from, *to = pair_of(pair->to.dest_qp_num);
	struct work *work = awaits(pair, packet->number) ? work_of(pair, packet->number) : NULL;
	bool is_read = packet->opcode == IBV_WR_RDMA_READ;

	if (!work || (is_read && packet->epoch != pair->epoch))
		goto out;
	if (!reaches(to, pair)) {
		pair_again(pair, packet->number);
		goto out;
	}
	if (packet->status) {
		if (packet->number == pair->tail)
			pair_fail(pair, packet->status);
		goto out;
	}
	if (is_read)
		read_land(pair, work, packet);
	work->acked = packet->offset + packet->length == packet->whole;
	pair_advance(pair);
out:
	free(packet);
}

static void answer_send(const struct packet *request, int status, size_t offset, size_t length,
			const void *bytes)
{
	struct packet *packet = malloc(sizeof(*packet) + length);
	struct pair *pair = request->from;
	int64_t when = sim_time + latency();

	*packet = *request;
	packet->status = status;
	packet->offset = offset;
	packet->length = length;
	if (length)
		memcpy(packet->bytes, bytes, length);
	when = (when > pair->last_back ? when : pair->last_back) + wire_time(length);
	pair->last_back = when;
	event_at(when, answer_arrives, packet);
}

/* ---- requests at the other end --------------------------------------------------------------- */

static void refuse(struct pair *to, const struct packet *packet)
{
	sim_trace("# nic: node %d refuses key %u", to->node, packet->rkey);
	answer_send(packet, IBV_WC_REM_ACCESS_ERR, 0, 0, NULL);
	pair_flush(to);
}

static void read_serve(struct pair *to, const struct packet *packet)
{
	const uint8_t *bytes = (const uint8_t *)(uintptr_t)packet->address;
	size_t done = 0, part;

	if (!(to->access & IBV_ACCESS_REMOTE_READ) ||
	    !mr_find(packet->rkey, packet->address, packet->whole, IBV_ACCESS_REMOTE_READ)) {
		refuse(to, packet);
		return;
	}
	do {
		part = packet->whole - done;
		if (part > 1024 && sim_draw_world(3))
			part = 1 + sim_draw_world(part);
		answer_send(packet, 0, done, part, bytes + done);
		done += part;
	} while (done < packet->whole);
}

static void receive_take(struct pair *to, const struct packet *packet)
{
	struct ibv_wc wc = { .wr_id = to->receives[to->taken % NIC_RECEIVES],
			     .opcode = IBV_WC_RECV_RDMA_WITH_IMM,
			     .wc_flags = IBV_WC_WITH_IMM,
			     .imm_data = packet->imm,
			     .byte_len = (uint32_t)packet->whole,
			     .qp_num = to->number };

	if (to->taken == to->posted)
		sim_fail("nic", "no receive at node %d for a notification of node %d", to->node,
			 packet->from->node);
	to->taken++;
	cq_push((struct cq *)to->qp->ibv.recv_cq, &wc);
}

/* A part of a write. True: the request is done. */
static bool write_serve(struct pair *to, const struct packet *packet)
{
	size_t end = packet->offset + packet->length, skip;

	if (packet->offset > to->landed)
		return false; /* what is before it was lost */
	if (packet->whole &&
	    (!(to->access & IBV_ACCESS_REMOTE_WRITE) ||
	     !mr_find(packet->rkey, packet->address, packet->whole, IBV_ACCESS_REMOTE_WRITE))) {
		refuse(to, packet);
		return false;
	}
	/* What is sent again does not land again. */
	if (end > to->landed) {
		skip = to->landed - packet->offset;
		memcpy((uint8_t *)(uintptr_t)packet->address + to->landed, packet->bytes + skip,
		       packet->length - skip);
		sim_counts.nic_bytes += packet->length - skip;
		to->landed = end;
	}
	if (end < packet->whole)
		return false;
	to->landed = 0;
	to->expected++;
	if (packet->opcode == IBV_WR_RDMA_WRITE_WITH_IMM)
		receive_take(to, packet);
	return true;
}

/* The queue pair takes a packet. */
static void request_take(struct pair *to, const struct packet *packet)
{
	bool is_read = packet->opcode == IBV_WR_RDMA_READ, is_done;

	if (packet->number > to->expected)
		return; /* what is before it was lost */
	is_done = packet->number < to->expected;
	if (is_read)
		to->expected += !is_done;
	else if (!is_done)
		is_done = write_serve(to, packet);
	if (packet->from->doomed)
		return;
	if (is_read)
		read_serve(to, packet);
	else if (is_done)
		answer_send(packet, 0, packet->whole, 0, NULL);
}

/* A packet arrives at the other end. */
static void request_arrives(void *arg)
{
	struct packet *packet = arg;
	struct pair *pair = packet->from, *to;

	if (packet->epoch != pair->epoch)
		goto out;
	to = receiver_of(pair);
	if (!to || !reaches(pair, to)) {
		pair_again(pair, packet->number);
		goto out;
	}
	hash_word(pair->number);
	hash_bytes(packet->bytes, packet->length);
	request_take(to, packet);
out:
	free(packet);
}

/* ---- sending --------------------------------------------------------------------------------- */

/* The NIC reads the bytes of a request when it sends it, and again when it sends it again. */
static void gather(const struct pair *pair, const struct work *work, uint8_t *out)
{
	if (work->wr.send_flags & IBV_SEND_INLINE) {
		memcpy(out, work->inlined, work->length);
		return;
	}
	for (int i = 0; i < work->wr.num_sge; i++) {
		const struct ibv_sge *sge = &work->sges[i];
		struct mr *mr = mr_find(sge->lkey, sge->addr, sge->length, 0);

		if (!mr || mr->ibv.pd != pair->qp->ibv.pd)
			sim_fail("nic", "a write of node %d reads under a key that is not valid",
				 pair->node);
		memcpy(out, (void *)(uintptr_t)sge->addr, sge->length);
		out += sge->length;
	}
}

static void packet_send(struct pair *pair, const struct work *work, const uint8_t *bytes,
			size_t offset, size_t length)
{
	struct packet *packet = malloc(sizeof(*packet) + length);
	int64_t when = sim_time + latency();

	*packet = (struct packet){ .from = pair,
				   .number = pair->sent,
				   .epoch = pair->epoch,
				   .opcode = work->wr.opcode,
				   .imm = work->wr.imm_data,
				   .rkey = work->wr.wr.rdma.rkey,
				   .address = work->wr.wr.rdma.remote_addr,
				   .offset = offset,
				   .length = length,
				   .whole = work->length };
	if (length)
		memcpy(packet->bytes, bytes + offset, length);
	when = (when > pair->last ? when : pair->last) + wire_time(length);
	pair->last = when;
	event_at(when, request_arrives, packet);
}

static void work_send(struct pair *pair, const struct work *work)
{
	bool is_read = work->wr.opcode == IBV_WR_RDMA_READ;
	size_t length = is_read ? 0 : work->length, done = 0, part;
	uint8_t *bytes = malloc(length + 1);

	if (!is_read)
		gather(pair, work, bytes);
	do {
		part = length - done;
		if (part > 1024 && sim_draw_world(3))
			part = 1 + sim_draw_world(part);
		packet_send(pair, work, bytes, done, part);
		done += part;
	} while (done < length);
	free(bytes);
	pair->nic->busy_until =
		(pair->nic->busy_until > sim_time ? pair->nic->busy_until : sim_time) +
		wire_time(length);
	sim_counts.nic_requests++;
}

/* This request is the last that gets anywhere, or does not: its queue pair fails soon. */
static void pair_doom(struct pair *pair)
{
	pair->doomed = true;
	if (sim_draw_world(2))
		pair->epoch++; /* its packets are lost */
	event_at(sim_time + 1 + (int64_t)sim_draw_world(500 * SIM_MS), doom, pair);
}

static unsigned reads_in_flight(const struct pair *pair)
{
	unsigned count = 0;

	for (uint64_t i = pair->tail; i < pair->sent; i++)
		count +=
			work_of(pair, i)->wr.opcode == IBV_WR_RDMA_READ && !work_of(pair, i)->acked;
	return count;
}

static bool pair_may_send(const struct pair *pair)
{
	return pair->qp && pair->state == IBV_QPS_RTS && !pair->doomed && pair->sent < pair->head &&
	       pair->sent - pair->tail < NIC_WINDOW && node_of(pair->node)->alive &&
	       (work_of(pair, pair->sent)->wr.opcode != IBV_WR_RDMA_READ ||
		reads_in_flight(pair) < pair->to.max_rd_atomic);
}

static void pair_send(void *arg)
{
	struct pair *pair = arg;
	struct work *work;

	pair->sending = false;
	if (!pair_may_send(pair))
		return;
	if (pair->pause_until > sim_time) {
		pair_kick(pair);
		return;
	}
	work = work_of(pair, pair->sent);
	if (pair->tail == pair->sent && !work->tried)
		pair->progress_at = sim_time;
	work->tried = true;
	if (!work->acked)
		work_send(pair, work);
	if (work->length && (int)sim_draw_world(10000) < sim_options.nic_errors)
		pair_doom(pair);
	pair->sent++;
	if (!pair->timed) {
		pair->timed = true;
		event_at(sim_time + 1, check_time, pair);
	}
	pair_kick(pair);
}

void pair_kick(struct pair *pair)
{
	int64_t when = sim_time;

	if (pair->sending || !pair_may_send(pair))
		return;
	when = pair->nic->busy_until > when ? pair->nic->busy_until : when;
	when = pair->pause_until > when ? pair->pause_until : when;
	pair->sending = true;
	event_at(when + 50 + (int64_t)sim_draw_world(1000), pair_send, pair);
}
