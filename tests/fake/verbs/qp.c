/* SPDX-License-Identifier: Apache-2.0 */
/* Queue pairs: creating them in the world that all processes share, and their transitions. */
#include <errno.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "inside.h"

static _Atomic unsigned pairs, pairs_most;

EXPORT void fake_verbs_pairs(unsigned *open, unsigned *most)
{
	*open = atomic_load(&pairs);
	*most = atomic_load(&pairs_most);
}

EXPORT struct ibv_qp *ibv_create_qp(struct ibv_pd *pd, struct ibv_qp_init_attr *attributes)
{
	struct context *context = (struct context *)pd->context;
	struct world *world = world_get();
	unsigned now, most = atomic_load(&pairs_most);
	struct ibv_gid_entry gid;
	struct qp *qp;

	if (attributes->qp_type != IBV_QPT_RC || !attributes->send_cq || !attributes->recv_cq ||
	    !attributes->cap.max_send_wr || attributes->cap.max_send_wr > QP_ROOM ||
	    attributes->cap.max_send_sge > (uint32_t)setting("FAKE_VERBS_SGE", SGES) ||
	    attributes->cap.max_recv_wr > RECEIVES ||
	    attributes->cap.max_inline_data > sizeof(qp->requests[0].inlined)) {
		errno = EINVAL;
		return NULL;
	}
	qp = calloc(1, sizeof(*qp));
	world_lock(world);
	for (unsigned i = 0; i < WORLD_QPS && !qp->out; i++) {
		struct world_qp *entry = &world->qps[i];
		pid_t pid = atomic_load(&entry->pid);

		if (pid && (kill(pid, 0) == 0 || errno != ESRCH))
			continue;
		atomic_store(&entry->state, 0);
		atomic_store(&entry->dest, 0);
		atomic_store(&entry->posted, 0);
		atomic_store(&entry->taken, 0);
		entry->lid = link_is_infiniband() ? (uint16_t)(context->nic->index + 1) : 0;
		qp->out = entry;
		qp->ibv.qp_num = FIRST_QP + i;
		atomic_store(&entry->pid, getpid());
	}
	world_unlock(world);
	if (!qp->out) {
		free(qp);
		errno = ENOMEM;
		return NULL;
	}
	nic_gid(context->nic, 0, &gid);
	memcpy(qp->out->gid, gid.gid.raw, 16);
	qp->ibv.context = pd->context;
	qp->ibv.pd = pd;
	qp->ibv.send_cq = attributes->send_cq;
	qp->ibv.recv_cq = attributes->recv_cq;
	qp->cap = attributes->cap;
	pthread_mutex_lock(&context->lock);
	qp->next = context->qps;
	context->qps = qp;
	pthread_mutex_unlock(&context->lock);
	count_open(1);
	now = atomic_fetch_add(&pairs, 1) + 1;
	while (most < now && !atomic_compare_exchange_weak(&pairs_most, &most, now))
		;
	return &qp->ibv;
}

/* The attributes that each transition of a reliable connection needs, by the specification. */
static int state_attributes(int state)
{
	switch (state) {
	case IBV_QPS_INIT:
		return IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS;
	case IBV_QPS_RTR:
		return IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN |
		       IBV_QP_RQ_PSN | IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER;
	case IBV_QPS_RTS:
		return IBV_QP_STATE | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY |
		       IBV_QP_SQ_PSN | IBV_QP_MAX_QP_RD_ATOMIC;
	default:
		return -1;
	}
}

EXPORT int ibv_modify_qp(struct ibv_qp *ibv, struct ibv_qp_attr *attributes, int mask)
{
	struct qp *qp = (struct qp *)ibv;
	struct context *context = (struct context *)ibv->context;
	int state = attributes->qp_state;
	struct ibv_gid_entry gid;

	if (mask != state_attributes(state) || atomic_load(&qp->out->state) != state - 1)
		return EINVAL;
	if (state == IBV_QPS_INIT)
		qp->out->access = (int)attributes->qp_access_flags;
	if (state == IBV_QPS_INIT && (attributes->port_num != 1 || attributes->pkey_index != 1))
		return EINVAL; /* P_Key entry 0 has limited membership only */
	if (state == IBV_QPS_RTR) {
		if (!link_is_infiniband() && !attributes->ah_attr.is_global)
			return EINVAL;
		qp->attr = *attributes;
		if (attributes->ah_attr.is_global) {
			nic_gid(context->nic, attributes->ah_attr.grh.sgid_index, &gid);
			memcpy(qp->out->gid, gid.gid.raw, 16);
		}
		qp->out->mtu = (uint32_t)attributes->path_mtu;
		atomic_store(&qp->out->dest, attributes->dest_qp_num);
	}
	if (state == IBV_QPS_RTS && attributes->retry_cnt == 7)
		return EINVAL; /* 7: retry for ever */
	atomic_store(&qp->out->state, state);
	return 0;
}

EXPORT int ibv_destroy_qp(struct ibv_qp *ibv)
{
	struct context *context = (struct context *)ibv->context;
	struct qp *qp = (struct qp *)ibv, **at;
	struct world *world = world_get();

	pthread_mutex_lock(&context->lock);
	for (at = &context->qps; *at != qp; at = &(*at)->next)
		;
	*at = qp->next;
	pthread_mutex_unlock(&context->lock);
	world_lock(world);
	atomic_store(&qp->out->state, 0);
	atomic_store(&qp->out->pid, 0);
	world_unlock(world);
	free(qp);
	count_open(-1);
	atomic_fetch_sub(&pairs, 1);
	return 0;
}
