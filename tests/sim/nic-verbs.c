/* SPDX-License-Identifier: Apache-2.0 */
/* libibverbs, as libwherry finds it by dlsym(): devices, memory, queues, events. */
#include <arpa/inet.h>
#include <errno.h>
#include <string.h>

#include "calls.h"
#include "nic.h"

#define NICS 4
#define MANY_PAGES (64 << 10) /* bytes that take as long as pinning can */
#define PINNING (2 * SIM_MS)

static struct nic nics[SIM_HOSTS][NICS];
static struct context *contexts;
static struct mr **mrs; /* by key - 1; a key never comes again */
static uint32_t mr_count;
static struct pair **pairs; /* by number - 1 */
static uint32_t pair_count;

/* ---- faults ---------------------------------------------------------------------------------- */

static bool fails(const char *call)
{
	if (!sim_chance(sim_options.nic_fails))
		return false;
	sim_trace("# nic: %s fails", call);
	errno = sim_draw_world(4) ? ENOMEM : EAGAIN;
	return true;
}

static void *failed(const char *call, int error)
{
	call_failed(call, -1, error);
	return NULL;
}

void context_event(struct context *context, int type)
{
	struct ibv_async_event event = { .element.port_num = 1, .event_type = type };

	if (context->head - context->tail == NIC_EVENTS)
		return;
	context->events[context->head++ % NIC_EVENTS] = event;
	context->async->count++;
	descriptor_changed(context->async);
}

static void nic_event(const struct nic *nic, int type)
{
	for (struct context *c = contexts; c; c = c->next)
		if (c->nic == nic && node_of(c->node)->alive)
			context_event(c, type);
}

void sim_nic_port(int host, int index, bool up)
{
	struct nic *nic = &nics[host][index % NICS];

	if (!*nic->name || nic->down == !up)
		return;
	sim_trace("# nic: port of %s of host %d goes %s", nic->name, host, up ? "up" : "down");
	nic->down = !up;
	nic_event(nic, up ? IBV_EVENT_PORT_ACTIVE : IBV_EVENT_PORT_ERR);
}

void sim_nic_black(int host, int index, int64_t ns)
{
	struct nic *nic = &nics[host][index % NICS];

	sim_trace("# nic: %s of host %d loses packets for %.3f s", nic->name, host,
		  (double)ns / 1e9);
	nic->black_until = sim_time + ns;
}

void sim_nic_heal(void)
{
	for (int host = 0; host < SIM_HOSTS; host++)
		for (int i = 0; i < NICS; i++) {
			nics[host][i].black_until = 0;
			sim_nic_port(host, i, true);
		}
}

int sim_nic_objects(int node)
{
	int count = 0;

	for (struct context *c = contexts; c; c = c->next)
		count += c->node == node ? 1 + c->objects : 0;
	return count;
}

/* ---- devices --------------------------------------------------------------------------------- */

static struct ibv_device **get_device_list(int *count)
{
	struct ibv_device **list = calloc(NICS + 1, sizeof(*list));
	int host = sim_node_host(node_self());

	call_point("ibv_get_device_list", 0);
	for (*count = 0; *count < sim_options.rdma && *count < NICS; ++*count) {
		struct nic *nic = &nics[host][*count];

		if (!*nic->name) {
			snprintf(nic->name, sizeof(nic->name), "nic%d", *count);
			nic->host = host;
			nic->index = *count;
			nic->max_inline = sim_draw_world(2) ? NIC_INLINE : 0;
		}
		list[*count] = (struct ibv_device *)nic;
	}
	return list;
}

static void free_device_list(struct ibv_device **list)
{
	free(list);
}

static const char *get_device_name(struct ibv_device *device)
{
	return ((struct nic *)device)->name;
}

static uint32_t descriptor_events(const struct descriptor *descriptor)
{
	return descriptor->count ? EPOLLIN : 0;
}

static const struct descriptor_kind kind_verbs = { .name = "verbs", .events = descriptor_events };

static int poll_cq(struct ibv_cq *cq, int count, struct ibv_wc *out);
static int req_notify_cq(struct ibv_cq *cq, int solicited_only);
static int post_send(struct ibv_qp *qp, struct ibv_send_wr *wr, struct ibv_send_wr **bad);
static int post_recv(struct ibv_qp *qp, struct ibv_recv_wr *wr, struct ibv_recv_wr **bad);

static struct ibv_context *open_device(struct ibv_device *device)
{
	struct context *context;

	call_point("ibv_open_device", 0);
	if (node_lacks_descriptors())
		return failed("ibv_open_device", EMFILE);
	if (fails("ibv_open_device"))
		return NULL;
	context = calloc(1, sizeof(*context));
	context->nic = (struct nic *)device;
	context->node = node_self();
	context->async = descriptor_new(&kind_verbs);
	context->ibv.device = device;
	context->ibv.async_fd = context->async->fd;
	context->ibv.num_comp_vectors = 1;
	context->ibv.ops.poll_cq = poll_cq;
	context->ibv.ops.req_notify_cq = req_notify_cq;
	context->ibv.ops.post_send = post_send;
	context->ibv.ops.post_recv = post_recv;
	context->next = contexts;
	contexts = context;
	return &context->ibv;
}

static int close_device(struct ibv_context *ibv)
{
	struct context *context = context_of(ibv), **at = &contexts;

	if (context->objects)
		sim_fail("leak", "node %d closes a NIC of which %d objects are open", context->node,
			 context->objects);
	while (*at != context)
		at = &(*at)->next;
	*at = context->next;
	descriptor_close(context->async);
	free(context);
	return 0;
}

static int query_device(struct ibv_context *context, struct ibv_device_attr *out)
{
	(void)context;
	*out = (struct ibv_device_attr){ .max_mr_size = (uint64_t)sim_options.nic_region,
					 .phys_port_cnt = 1,
					 .max_qp = 1 << 16,
					 .max_qp_wr = 4096,
					 .max_sge = NIC_SGES,
					 .max_cqe = 1 << 16,
					 .max_qp_rd_atom = 16,
					 .max_qp_init_rd_atom = 16 };
	return 0;
}

static int query_port(struct ibv_context *context, uint8_t port, struct ibv_port_attr *out)
{
	call_point("ibv_query_port", port);
	if (port != 1)
		return EINVAL;
	memset(out, 0, offsetof(struct ibv_port_attr, port_cap_flags2));
	out->state = context_of(context)->nic->down ? 1 : IBV_PORT_ACTIVE;
	out->max_mtu = 5;
	out->active_mtu = 3;
	out->gid_tbl_len = 1;
	out->max_msg_sz = 1u << 31;
	out->pkey_tbl_len = 1;
	out->link_layer = IBV_LAYER_ETHERNET;
	return 0;
}

/* RoCE v2, ::ffff:10.77.NIC.HOST+1 */
const uint8_t *nic_gid(const struct nic *nic, uint8_t gid[16])
{
	memset(gid, 0, 16);
	memset(gid + 10, 0xff, 2);
	gid[12] = 10;
	gid[13] = 77;
	gid[14] = (uint8_t)nic->index;
	gid[15] = (uint8_t)(nic->host + 1);
	return gid;
}

static int query_gid(struct ibv_context *context, uint8_t port, int index, union ibv_gid *out)
{
	if (port != 1 || index)
		return -1;
	nic_gid(context_of(context)->nic, out->raw);
	return 0;
}

static int query_gid_ex(struct ibv_context *context, uint32_t port, uint32_t index,
			struct ibv_gid_entry *out, uint32_t flags, size_t size)
{
	if (flags || size != sizeof(*out))
		return EINVAL;
	*out = (struct ibv_gid_entry){ .gid_index = index,
				       .port_num = port,
				       .gid_type = IBV_GID_ROCE_V2 };
	return query_gid(context, (uint8_t)port, (int)index, &out->gid) ? ENODATA : 0;
}

static int query_pkey(struct ibv_context *context, uint8_t port, int index, uint16_t *out)
{
	(void)context;
	*out = 0xffff;
	return port != 1 || index ? -1 : 0;
}

static int get_async_event(struct ibv_context *ibv, struct ibv_async_event *out)
{
	struct context *context = context_of(ibv);

	call_point("ibv_get_async_event", 0);
	if (!context->async->count)
		return (int)call_failed("ibv_get_async_event", context->async->fd, EAGAIN);
	*out = context->events[context->tail++ % NIC_EVENTS];
	context->async->count--;
	descriptor_changed(context->async);
	return (int)call_result("ibv_get_async_event", context->async->fd, 0);
}

static void ack_async_event(struct ibv_async_event *event)
{
	(void)event;
}

/* ---- memory ---------------------------------------------------------------------------------- */

static struct ibv_pd *alloc_pd(struct ibv_context *context)
{
	struct ibv_pd *pd;

	call_point("ibv_alloc_pd", 0);
	if (fails("ibv_alloc_pd"))
		return NULL;
	pd = calloc(1, sizeof(*pd));
	pd->context = context;
	context_of(context)->objects++;
	return pd;
}

static int dealloc_pd(struct ibv_pd *pd)
{
	context_of(pd->context)->objects--;
	free(pd);
	return 0;
}

struct mr *mr_find(uint32_t key, uint64_t address, uint64_t length, int access)
{
	struct mr *mr = key && key <= mr_count ? mrs[key - 1] : NULL;
	uint64_t from = mr ? (uintptr_t)mr->ibv.addr : 0;

	return mr && address >= from && length <= mr->ibv.length &&
			       address - from <= mr->ibv.length - length &&
			       (mr->access & access) == access ?
		       mr :
		       NULL;
}

static struct ibv_mr *reg_mr_iova2(struct ibv_pd *pd, void *address, size_t length, uint64_t iova,
				   unsigned int access)
{
	struct mr *mr;

	call_point("ibv_reg_mr", length);
	if (!length || iova != (uintptr_t)address || length > (size_t)sim_options.nic_region ||
	    ((access & IBV_ACCESS_REMOTE_WRITE) && !(access & IBV_ACCESS_LOCAL_WRITE)))
		return failed("ibv_reg_mr", EINVAL);
	if (fails("ibv_reg_mr"))
		return NULL;
	/* Pages are pinned one by one. */
	if (!sim_draw_world(20))
		sim_sleep((int64_t)sim_draw_world(
			length < MANY_PAGES ? PINNING * length / MANY_PAGES : PINNING));
	mr = calloc(1, sizeof(*mr));
	mrs = sim_grow_one(mrs, mr_count, sizeof(struct mr *));
	mrs[mr_count] = mr;
	mr->ibv = (struct ibv_mr){ .context = pd->context,
				   .pd = pd,
				   .addr = address,
				   .length = length,
				   .lkey = mr_count + 1,
				   .rkey = mr_count + 1 };
	mr->access = (int)access;
	mr_count++;
	context_of(pd->context)->objects++;
	call_result("ibv_reg_mr", (int)mr_count, 0);
	return &mr->ibv;
}

static struct ibv_mr *reg_mr(struct ibv_pd *pd, void *address, size_t length, int access)
{
	return reg_mr_iova2(pd, address, length, (uintptr_t)address, (unsigned int)access);
}

static int dereg_mr(struct ibv_mr *mr)
{
	call_point("ibv_dereg_mr", mr->lkey);
	mrs[mr->lkey - 1] = NULL;
	context_of(mr->context)->objects--;
	free(mr);
	return 0;
}

/* ---- completion queues ----------------------------------------------------------------------- */

static struct ibv_comp_channel *create_comp_channel(struct ibv_context *context)
{
	struct channel *channel;

	call_point("ibv_create_comp_channel", 0);
	if (node_lacks_descriptors())
		return failed("ibv_create_comp_channel", EMFILE);
	if (fails("ibv_create_comp_channel"))
		return NULL;
	channel = calloc(1, sizeof(*channel));
	channel->descriptor = descriptor_new(&kind_verbs);
	channel->ibv.context = context;
	channel->ibv.fd = channel->descriptor->fd;
	context_of(context)->objects++;
	return &channel->ibv;
}

static int destroy_comp_channel(struct ibv_comp_channel *ibv)
{
	struct channel *channel = (struct channel *)ibv;

	call_point("ibv_destroy_comp_channel", (uint64_t)ibv->fd);
	if (ibv->refcnt)
		sim_fail("nic", "a completion channel is destroyed that %d queues use",
			 ibv->refcnt);
	descriptor_close(channel->descriptor);
	context_of(ibv->context)->objects--;
	free(channel->events);
	free(channel);
	return 0;
}

static void channel_put(struct channel *channel, struct cq *cq)
{
	if (channel->count == channel->room) {
		channel->room += 16;
		channel->events = sim_grow(channel->events, channel->room, sizeof(struct cq *));
	}
	channel->events[channel->count++] = cq;
	channel->descriptor->count = channel->count;
	descriptor_changed(channel->descriptor);
}

static void channel_take(struct channel *channel, unsigned at)
{
	memmove(channel->events + at, channel->events + at + 1,
		(--channel->count - at) * sizeof(struct cq *));
	channel->descriptor->count = channel->count;
	descriptor_changed(channel->descriptor);
}

void cq_push(struct cq *cq, const struct ibv_wc *wc)
{
	if (cq->head - cq->tail == cq->room)
		sim_fail("nic", "a completion queue of %u overruns", cq->room);
	cq->wcs[cq->head++ % cq->room] = *wc;
	if (cq->armed && cq->ibv.channel) {
		cq->armed = false;
		channel_put((struct channel *)cq->ibv.channel, cq);
	}
}

static struct ibv_cq *create_cq(struct ibv_context *context, int entries, void *cq_context,
				struct ibv_comp_channel *channel, int vector)
{
	struct cq *cq;

	(void)vector;
	call_point("ibv_create_cq", (uint64_t)entries);
	if (fails("ibv_create_cq"))
		return NULL;
	cq = calloc(1, sizeof(*cq));
	cq->ibv.context = context;
	cq->ibv.channel = channel;
	cq->ibv.cq_context = cq_context;
	cq->ibv.cqe = entries;
	cq->room = (unsigned)entries;
	cq->wcs = calloc(cq->room, sizeof(*cq->wcs));
	if (channel)
		channel->refcnt++;
	context_of(context)->objects++;
	return &cq->ibv;
}

static int destroy_cq(struct ibv_cq *ibv)
{
	struct channel *channel = (struct channel *)ibv->channel;
	struct cq *cq = (struct cq *)ibv;

	call_point("ibv_destroy_cq", 0);
	if (cq->pairs || cq->unacked)
		sim_fail("nic",
			 "a completion queue is destroyed that %u queue pairs use, %u "
			 "events not acknowledged",
			 cq->pairs, cq->unacked);
	for (unsigned i = channel ? channel->count : 0; i--;)
		if (channel->events[i] == cq)
			channel_take(channel, i);
	if (channel)
		channel->ibv.refcnt--;
	context_of(ibv->context)->objects--;
	free(cq->wcs);
	free(cq);
	return 0;
}

static int get_cq_event(struct ibv_comp_channel *ibv, struct ibv_cq **out, void **cq_context)
{
	struct channel *channel = (struct channel *)ibv;
	struct cq *cq;

	call_point("ibv_get_cq_event", (uint64_t)ibv->fd);
	if (!channel->count)
		return (int)call_failed("ibv_get_cq_event", ibv->fd, EAGAIN);
	cq = channel->events[0];
	channel_take(channel, 0);
	cq->unacked++;
	*out = &cq->ibv;
	*cq_context = cq->ibv.cq_context;
	return (int)call_result("ibv_get_cq_event", ibv->fd, 0);
}

static void ack_cq_events(struct ibv_cq *cq, unsigned int count)
{
	((struct cq *)cq)->unacked -= count;
}

static int poll_cq(struct ibv_cq *ibv, int count, struct ibv_wc *out)
{
	struct cq *cq = (struct cq *)ibv;
	int got = 0;

	call_point("ibv_poll_cq", 0);
	while (got < count && cq->tail != cq->head) {
		out[got] = cq->wcs[cq->tail++ % cq->room];
		sim_trace("completion of queue pair %u: %d", out[got].qp_num, out[got].status);
		hash_word((uint64_t)out[got].qp_num << 8 | (uint64_t)out[got].status);
		got++;
	}
	return got;
}

/* What has completed before makes no event. */
static int req_notify_cq(struct ibv_cq *ibv, int solicited_only)
{
	(void)solicited_only;
	call_point("ibv_req_notify_cq", 0);
	((struct cq *)ibv)->armed = true;
	return 0;
}

/* ---- queue pairs ----------------------------------------------------------------------------- */

struct pair *pair_of(uint32_t number)
{
	return number && number <= pair_count ? pairs[number - 1] : NULL;
}

static struct ibv_qp *create_qp(struct ibv_pd *pd, struct ibv_qp_init_attr *wanted)
{
	struct context *context = context_of(pd->context);
	struct pair *pair;
	struct qp *qp;

	call_point("ibv_create_qp", wanted->cap.max_send_wr);
	if (wanted->cap.max_inline_data > context->nic->max_inline ||
	    wanted->cap.max_send_sge > NIC_SGES || wanted->cap.max_recv_wr > NIC_RECEIVES)
		return failed("ibv_create_qp", EINVAL);
	if (fails("ibv_create_qp"))
		return NULL;
	pair = calloc(1, sizeof(*pair));
	qp = calloc(1, sizeof(*qp));
	pairs = sim_grow_one(pairs, pair_count, sizeof(struct pair *));
	pairs[pair_count++] = pair;
	*pair = (struct pair){ .qp = qp,
			       .number = pair_count,
			       .nic = context->nic,
			       .node = context->node,
			       .cap = wanted->cap,
			       .silent = sim_draw_world(2) };
	pair->works = calloc(pair->cap.max_send_wr, sizeof(struct work));
	qp->pair = pair;
	qp->ibv = (struct ibv_qp){ .context = pd->context,
				   .pd = pd,
				   .send_cq = wanted->send_cq,
				   .recv_cq = wanted->recv_cq,
				   .qp_num = pair_count,
				   .qp_type = wanted->qp_type };
	((struct cq *)wanted->send_cq)->pairs++;
	((struct cq *)wanted->recv_cq)->pairs++;
	context->objects++;
	call_result("ibv_create_qp", (int)pair_count, 0);
	return &qp->ibv;
}

static int modify_qp(struct ibv_qp *ibv, struct ibv_qp_attr *attributes, int mask)
{
	struct pair *pair = ((struct qp *)ibv)->pair;

	(void)mask;
	call_point("ibv_modify_qp", (uint64_t)attributes->qp_state);
	if (attributes->qp_state != pair->state + 1)
		return EINVAL;
	if (fails("ibv_modify_qp"))
		return errno;
	pair->state = attributes->qp_state;
	if (pair->state == IBV_QPS_INIT) {
		pair->access = (int)attributes->qp_access_flags;
	} else if (pair->state == IBV_QPS_RTR) {
		pair->to = *attributes;
	} else {
		pair->to.sq_psn = attributes->sq_psn;
		pair->to.timeout = attributes->timeout;
		pair->to.max_rd_atomic = attributes->max_rd_atomic;
		pair->limit = (4096LL << attributes->timeout) * (attributes->retry_cnt + 1) *
			      (1 + (int64_t)sim_draw_world(4));
	}
	return 0;
}

/* On return the NIC touches no memory for it. What it has sent may still land at the other end. */
static int destroy_qp(struct ibv_qp *ibv)
{
	struct qp *qp = (struct qp *)ibv;

	call_point("ibv_destroy_qp", ibv->qp_num);
	sim_trace("ibv_destroy_qp(%u)", ibv->qp_num);
	((struct cq *)ibv->send_cq)->pairs--;
	((struct cq *)ibv->recv_cq)->pairs--;
	context_of(ibv->context)->objects--;
	free(qp->pair->works);
	qp->pair->works = NULL;
	qp->pair->qp = NULL;
	free(qp);
	return 0;
}

static int work_take(struct pair *pair, const struct ibv_send_wr *wr)
{
	struct work *work = &pair->works[pair->head % pair->cap.max_send_wr];
	uint8_t *at = work->inlined;

	if (pair->state != IBV_QPS_RTS && pair->state != IBV_QPS_ERR)
		return EINVAL;
	if (pair->head - pair->tail == pair->cap.max_send_wr)
		return ENOMEM;
	*work = (struct work){ .wr = *wr };
	for (int i = 0; i < wr->num_sge; i++) {
		work->sges[i] = wr->sg_list[i];
		work->length += wr->sg_list[i].length;
	}
	if (wr->send_flags & IBV_SEND_INLINE) {
		if (work->length > pair->cap.max_inline_data || wr->opcode == IBV_WR_RDMA_READ)
			return EINVAL;
		for (int i = 0; i < wr->num_sge; i++) {
			memcpy(at, (void *)(uintptr_t)wr->sg_list[i].addr, wr->sg_list[i].length);
			at += wr->sg_list[i].length;
		}
	}
	pair->head++;
	return 0;
}

static int post_send(struct ibv_qp *ibv, struct ibv_send_wr *wr, struct ibv_send_wr **bad)
{
	struct pair *pair = ((struct qp *)ibv)->pair;
	int error = 0;

	call_point("ibv_post_send", ibv->qp_num);
	for (; wr && !error; wr = wr->next) {
		*bad = wr;
		error = fails("ibv_post_send") ? errno : work_take(pair, wr);
		if (error)
			break;
		sim_trace("ibv_post_send(%u): opcode %d, %zu bytes", ibv->qp_num, wr->opcode,
			  pair->works[(pair->head - 1) % pair->cap.max_send_wr].length);
	}
	if (pair->state == IBV_QPS_ERR)
		pair_flush(pair);
	else
		pair_kick(pair);
	return error;
}

static int post_recv(struct ibv_qp *ibv, struct ibv_recv_wr *wr, struct ibv_recv_wr **bad)
{
	struct pair *pair = ((struct qp *)ibv)->pair;

	call_point("ibv_post_recv", ibv->qp_num);
	for (; wr; wr = wr->next) {
		*bad = wr;
		if (pair->state < IBV_QPS_INIT || wr->num_sge)
			return EINVAL;
		if (pair->posted - pair->taken == pair->cap.max_recv_wr)
			return ENOMEM;
		pair->receives[pair->posted++ % NIC_RECEIVES] = wr->wr_id;
	}
	if (pair->state == IBV_QPS_ERR)
		pair_flush(pair);
	return 0;
}

/* ---- libibverbs.so.1 ------------------------------------------------------------------------- */

#define FUNCTION(name)                                                                             \
	{                                                                                          \
		"ibv_" #name, (void (*)(void))(name)                                               \
	}

static const struct {
	const char *name;
	void (*call)(void);
} functions[] = {
	FUNCTION(get_device_list),     FUNCTION(free_device_list),
	FUNCTION(get_device_name),     FUNCTION(open_device),
	FUNCTION(close_device),        FUNCTION(query_device),
	FUNCTION(query_port),          FUNCTION(query_gid),
	FUNCTION(query_pkey),          FUNCTION(get_async_event),
	FUNCTION(ack_async_event),     FUNCTION(alloc_pd),
	FUNCTION(dealloc_pd),          FUNCTION(reg_mr),
	FUNCTION(reg_mr_iova2),        FUNCTION(dereg_mr),
	FUNCTION(create_comp_channel), FUNCTION(destroy_comp_channel),
	FUNCTION(create_cq),           FUNCTION(destroy_cq),
	FUNCTION(get_cq_event),        FUNCTION(ack_cq_events),
	FUNCTION(create_qp),           FUNCTION(modify_qp),
	FUNCTION(destroy_qp),          { "_ibv_query_gid_ex", (void (*)(void))query_gid_ex },
};

static char library; /* its address is the handle */

void *nic_library(const char *path)
{
	return strcmp(path, "libibverbs.so.1") == 0 ? &library : NULL;
}

void *nic_function(const void *handle, const char *name)
{
	void *found = NULL;

	for (size_t i = 0; handle == &library && i < sizeof(functions) / sizeof(*functions); i++)
		if (!strcmp(functions[i].name, name))
			memcpy(&found, &functions[i].call, sizeof(found));
	return found;
}
