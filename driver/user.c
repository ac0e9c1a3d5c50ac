// SPDX-License-Identifier: MIT OR GPL-2.0-only
/* Limits on pinned memory for each user.
 *
 * All users may open the device, and pins occupy the GPU's BAR 1, which they share. A pin is
 * therefore charged to the user who opened the descriptor, until the driver has the pages back.
 */
#include <linux/capability.h>
#include <linux/list.h>
#include <linux/slab.h>
#include <linux/spinlock.h>
#include <linux/uidgid.h>

#include "wherry_gdr.h"

struct user {
	struct list_head link;
	kuid_t uid;
	unsigned long references; /* of clients and regions */
	u64 pinned; /* bytes, as whole GPU pages */
};

/* Guards the list and its elements. Callbacks take it: do not allocate while holding it. */
static DEFINE_SPINLOCK(users_lock);
static LIST_HEAD(users);
static u64 most; /* bytes for each user; 0: no limit */

void user_init(u64 limit)
{
	most = limit;
}

static struct user *user_find(kuid_t uid)
{
	struct user *user;

	lockdep_assert_held(&users_lock);
	list_for_each_entry(user, &users, link)
	{
		if (uid_eq(user->uid, uid))
			return user;
	}
	return NULL;
}

struct user *user_get(kuid_t uid)
{
	struct user *fresh = kzalloc(sizeof(*fresh), GFP_KERNEL), *user;

	if (!fresh)
		return NULL;
	spin_lock(&users_lock);
	user = user_find(uid);
	if (!user) {
		user = fresh;
		fresh = NULL;
		user->uid = uid;
		list_add(&user->link, &users);
	}
	user->references++;
	spin_unlock(&users_lock);
	kfree(fresh);
	return user;
}

struct user *user_ref(struct user *user)
{
	spin_lock(&users_lock);
	user->references++;
	spin_unlock(&users_lock);
	return user;
}

void user_put(struct user *user)
{
	bool last;

	spin_lock(&users_lock);
	last = !--user->references;
	if (last)
		list_del(&user->link);
	spin_unlock(&users_lock);
	if (last)
		kfree(user);
}

int user_charge(struct user *user, u64 bytes)
{
	bool fits;

	spin_lock(&users_lock);
	fits = !most || (user->pinned <= most && bytes <= most - user->pinned);
	if (fits)
		user->pinned += bytes;
	spin_unlock(&users_lock);
	if (fits)
		return 0;
	/* CAP_IPC_LOCK lifts the limit, as for other memory pinned for devices. */
	if (!capable(CAP_IPC_LOCK))
		return -EDQUOT;
	spin_lock(&users_lock);
	user->pinned += bytes;
	spin_unlock(&users_lock);
	return 0;
}

void user_uncharge(struct user *user, u64 bytes)
{
	spin_lock(&users_lock);
	user->pinned -= bytes;
	spin_unlock(&users_lock);
}
