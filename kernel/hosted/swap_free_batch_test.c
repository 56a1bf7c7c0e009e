// SPDX-License-Identifier: GPL-2.0-only
/*
 * Releases batches of swap entries, while others use the slots, and compares
 * what becomes of each slot with what must: a reference is dropped once, a slot
 * is freed once and only if nobody refers to it, what is stored for it goes with
 * it and no sooner, and the cgroup that it is charged to is the one uncharged.
 */
#include "swap_env.h"
#include "linux/bitmap.h"
#include "test.h"

#define NR_DEVICES		2
#define NR_SLOTS		128
#define NR_MEMCGS		3
/* Small, so that runs cross their borders. */
#define SWAPFILE_CLUSTER	8

#define SWAP_HAS_CACHE		0x40
#define SWP_BLKDEV		(1 << 6)
#define TTRS_UNMAPPED		2
#define TTRS_FULL		4

#define data_race(x)		(x)
#define swp_entry(t, o)		((swp_entry_t){ .type = (t), .offset = (o) })

struct block_device;

struct block_device_operations {
	void (*swap_slot_free_notify)(struct block_device *bdev,
				      unsigned long first, unsigned int nr);
};

struct gendisk {
	const struct block_device_operations *fops;
};

struct swap_cluster_info {
	bool locked;
	unsigned int count;
};

struct block_device {
	struct gendisk *bd_disk;
	unsigned int type;
};

/**
 * struct slot - what the model knows of one
 * @refs: references of others
 * @held: references of the batch that is being released
 * @folio: pages of the folio in the swap cache, aligned to that
 * @tried: the folio was tried to be reclaimed
 * @faulting: a fault keeps SWAP_HAS_CACHE for itself, without a folio
 * @memcg: that it is charged to, or 0
 * @stored: by the device
 * @tagged: by the architecture
 * @zswap: stored there
 * @shadow: in the swap cache
 * @waits: was deferred
 */
struct slot {
	unsigned int refs;
	unsigned int held;
	unsigned int folio;
	bool tried;
	bool faulting;
	unsigned short memcg;
	bool stored;
	bool tagged;
	bool zswap;
	bool shadow;
	bool waits;
};

struct swap_info_struct {
	bool lock;
	unsigned long flags;
	unsigned int type;
	unsigned char *swap_map;
	unsigned long *zeromap;
	struct block_device *bdev;

	/* The model's. */
	unsigned int users;
	bool gone;
	struct slot slots[NR_SLOTS];
	struct swap_cluster_info clusters[NR_SLOTS / SWAPFILE_CLUSTER];
	struct block_device device;
	struct gendisk disk;
	unsigned long zero[BITS_TO_LONGS(NR_SLOTS)];
	unsigned char map[NR_SLOTS];
};

static struct swap_info_struct devices[NR_DEVICES];
static struct swap_info_struct *swap_info[NR_DEVICES];
/* Pages that are charged. */
static long charged[NR_MEMCGS + 1];
/* What the code under test did: slots freed or deferred, warnings. */
static unsigned int nr_freed, nr_deferred, nr_warnings;
static bool zswap_used, others_enabled;
static uint64_t seed = 1;

static bool one_in(unsigned int n)
{
	return rnd(&seed) % n == 0;
}

static bool WARN_ON_ONCE(bool condition)
{
	nr_warnings += condition;
	return condition;
}

/* --- What slots are, and what others do to them --- */

static struct slot *slot_of(unsigned int type, unsigned long offset)
{
	CHECK(type < NR_DEVICES && offset < NR_SLOTS);
	return &devices[type].slots[offset];
}

/* Only the code under test can access it. */
static bool is_ours(unsigned int type, unsigned long offset)
{
	const struct slot *slot = slot_of(type, offset);

	return devices[type].map[offset] == SWAP_HAS_CACHE && !slot->folio &&
	       !slot->faulting;
}

static void check_ours(unsigned int type, unsigned long offset, unsigned int nr)
{
	CHECK(devices[type].users || slot_of(type, offset)->waits);
	for (unsigned int i = 0; i < nr; i++) {
		CHECK(is_ours(type, offset + i));
		CHECK(!slot_of(type, offset + i)->refs);
	}
}

static struct swap_cluster_info *cluster_of(struct swap_info_struct *si,
					    unsigned long offset)
{
	CHECK(offset < NR_SLOTS);
	return &si->clusters[offset / SWAPFILE_CLUSTER];
}

/* By the stock code. */
static void free_slot(struct swap_info_struct *si, unsigned long offset)
{
	charged[si->slots[offset].memcg]--;
	si->slots[offset] = (struct slot){};
	si->map[offset] = 0;
	si->zero[offset / BITS_PER_LONG] &= ~BIT(offset % BITS_PER_LONG);
	cluster_of(si, offset)->count--;
}

static void use_slot(struct swap_info_struct *si, unsigned long offset)
{
	si->slots[offset] = (struct slot){
		.refs = 1,
		.memcg = rnd(&seed) % (NR_MEMCGS + 1),
		.stored = true,
		.tagged = one_in(2),
		.zswap = zswap_used && one_in(2),
		.shadow = one_in(2),
	};
	charged[si->slots[offset].memcg]++;
	si->map[offset] = 1;
	if (one_in(4))
		si->zero[offset / BITS_PER_LONG] |= BIT(offset % BITS_PER_LONG);
	cluster_of(si, offset)->count++;
}

static void free_if_unused(struct swap_info_struct *si, unsigned long offset)
{
	if (!si->map[offset])
		free_slot(si, offset);
}

static void add_folio(struct swap_info_struct *si, unsigned long offset)
{
	unsigned int pages = 1 << rnd(&seed) % 3;
	unsigned long first = ALIGN_DOWN(offset, pages);

	for (unsigned long i = first; i < first + pages; i++) {
		if (!si->map[i] || si->map[i] & SWAP_HAS_CACHE)
			return;
	}
	for (unsigned long i = first; i < first + pages; i++) {
		si->slots[i].folio = pages;
		si->slots[i].tried = false;
		si->slots[i].shadow = false;
		si->map[i] |= SWAP_HAS_CACHE;
	}
}

static void remove_folio(struct swap_info_struct *si, unsigned long offset)
{
	unsigned int pages = si->slots[offset].folio;
	unsigned long first = ALIGN_DOWN(offset, pages);

	for (unsigned long i = first; i < first + pages; i++) {
		si->slots[i].folio = 0;
		si->map[i] &= ~SWAP_HAS_CACHE;
		free_if_unused(si, i);
	}
}

static void others_use(struct swap_info_struct *si, unsigned long offset)
{
	struct slot *slot = &si->slots[offset];
	unsigned char *map = &si->map[offset];

	if (is_ours(si->type, offset))
		return;
	switch (rnd(&seed) % 6) {
	case 0:
		if (!*map)
			use_slot(si, offset);
		break;
	case 1:
		if (slot->refs && slot->refs < 3) {
			slot->refs++;
			++*map;
		}
		break;
	case 2:
		if (slot->refs) {
			slot->refs--;
			--*map;
			free_if_unused(si, offset);
		}
		break;
	case 3:
		add_folio(si, offset);
		break;
	case 4:
		if (slot->folio)
			remove_folio(si, offset);
		break;
	case 5:
		/*
		 * A fault that has read the entry before it was cleared: with
		 * cgroups of version 1, it is uncharged.
		 */
		if (slot->faulting) {
			slot->faulting = false;
			*map &= ~SWAP_HAS_CACHE;
			free_if_unused(si, offset);
		} else if (*map && !(*map & SWAP_HAS_CACHE)) {
			slot->faulting = true;
			*map |= SWAP_HAS_CACHE;
			charged[slot->memcg]--;
			slot->memcg = 0;
			charged[0]++;
		}
		break;
	}
}

/* Whenever the code under test holds no lock. */
static void others(void)
{
	while (others_enabled && !one_in(3))
		others_use(&devices[one_in(2)], rnd(&seed) % NR_SLOTS);
}

/* --- mm/swapfile.c and what it calls --- */

static void lock(bool *which)
{
	others();
	CHECK(!*which);
	*which = true;
}

static void unlock(bool *which)
{
	CHECK(*which);
	*which = false;
}

#define spin_lock(which)	lock(which)
#define spin_unlock(which)	(unlock(which), others())

static struct swap_cluster_info *
lock_cluster_or_swap_info(struct swap_info_struct *si, unsigned long offset)
{
	CHECK(si->users);
	lock(&cluster_of(si, offset)->locked);
	return cluster_of(si, offset);
}

static void unlock_cluster_or_swap_info(struct swap_info_struct *si,
					struct swap_cluster_info *ci)
{
	unlock(&ci->locked);
	others();
}

static struct swap_cluster_info *lock_cluster(struct swap_info_struct *si,
					      unsigned long offset)
{
	struct swap_cluster_info *ci = cluster_of(si, offset);

	CHECK(si->lock && !ci->locked);
	ci->locked = true;

	return ci;
}

static void unlock_cluster(struct swap_cluster_info *ci)
{
	unlock(&ci->locked);
}

static void dec_cluster_info_page(struct swap_info_struct *si,
				  struct swap_cluster_info *ci, int nr)
{
	CHECK(si->lock && ci->locked && ci->count >= nr);
	ci->count -= nr;
}

static struct swap_info_struct *get_swap_device(swp_entry_t entry)
{
	struct swap_info_struct *si = &devices[entry.type];

	others();
	if (si->gone)
		return NULL;
	si->users++;

	return si;
}

static void put_swap_device(struct swap_info_struct *si)
{
	CHECK(si->users);
	si->users--;
}

static unsigned char __swap_entry_free_locked(struct swap_info_struct *si,
					      unsigned long offset,
					      unsigned char usage)
{
	unsigned char *map = &si->map[offset];

	CHECK(cluster_of(si, offset)->locked && usage == 1);
	CHECK(*map & ~SWAP_HAS_CACHE);
	--*map;
	usage = *map;
	if (!usage)
		*map = SWAP_HAS_CACHE;

	return usage;
}

static void swap_range_free(struct swap_info_struct *si, unsigned long offset,
			    unsigned int nr)
{
	CHECK(si->lock && !cluster_of(si, offset)->locked);
	for (unsigned int i = 0; i < nr; i++) {
		struct slot *slot = slot_of(si->type, offset + i);

		CHECK(!si->map[offset + i] && !slot->refs && !slot->folio);
		CHECK(!slot->stored || !si->flags ||
		      !si->disk.fops->swap_slot_free_notify);
		CHECK(!slot->tagged && !slot->zswap && !slot->shadow);
		CHECK(!slot->memcg);
		CHECK(!(si->zero[(offset + i) / BITS_PER_LONG] &
			BIT((offset + i) % BITS_PER_LONG)));
		charged[0]--;
		nr_freed += !slot->waits;
		*slot = (struct slot){};
	}
}

static int __try_to_reclaim_swap(struct swap_info_struct *si,
				 unsigned long offset, unsigned long flags)
{
	unsigned int pages = slot_of(si->type, offset)->folio;
	unsigned long first = ALIGN_DOWN(offset, pages ?: 1);

	CHECK(si->users && !cluster_of(si, offset)->locked);
	CHECK(flags == (TTRS_UNMAPPED | TTRS_FULL));
	if (!pages)
		return 0;
	for (unsigned int i = 0; i < pages; i++)
		si->slots[first + i].tried = true;
	/* Somebody has the folio. */
	if (one_in(4))
		return -pages;
	for (unsigned int i = 0; i < pages; i++) {
		if (si->map[first + i] != SWAP_HAS_CACHE)
			return -pages;
	}
	remove_folio(si, offset);

	return pages;
}

static void arch_swap_invalidate_page(int type, unsigned long offset)
{
	check_ours(type, offset, 1);
	slot_of(type, offset)->tagged = false;
}

static void clear_bit(unsigned long offset, unsigned long *zeromap)
{
	unsigned int type;

	for (type = 0; devices[type].zero != zeromap; type++)
		CHECK(type < NR_DEVICES - 1);
	check_ours(type, offset, 1);
	zeromap[offset / BITS_PER_LONG] &= ~BIT(offset % BITS_PER_LONG);
}

static void slot_free_notify(struct block_device *bdev, unsigned long first,
			     unsigned int nr)
{
	check_ours(bdev->type, first, nr);
	for (unsigned int i = 0; i < nr; i++) {
		CHECK(slot_of(bdev->type, first + i)->stored);
		slot_of(bdev->type, first + i)->stored = false;
	}
	others();
}

static const struct block_device_operations notified = { slot_free_notify };
static const struct block_device_operations not_notified = {};

static void clear_shadow_from_swap_cache(int type, unsigned long begin,
					 unsigned long end)
{
	check_ours(type, begin, end - begin + 1);
	for (; begin <= end; begin++)
		slot_of(type, begin)->shadow = false;
	others();
}

static bool zswap_never_enabled(void)
{
	return !zswap_used;
}

static void zswap_invalidate(swp_entry_t entry)
{
	check_ours(entry.type, entry.offset, 1);
	slot_of(entry.type, entry.offset)->zswap = false;
}

/* What is free belongs to none, so only what is ours is known for sure. */
static unsigned short lookup_swap_cgroup_id(swp_entry_t entry)
{
	check_ours(entry.type, entry.offset, 1);
	return slot_of(entry.type, entry.offset)->memcg;
}

static void mem_cgroup_uncharge_swap(swp_entry_t entry, unsigned int nr)
{
	unsigned short memcg = slot_of(entry.type, entry.offset)->memcg;

	check_ours(entry.type, entry.offset, nr);
	for (unsigned int i = 0; i < nr; i++) {
		struct slot *slot = slot_of(entry.type, entry.offset + i);

		/* The first one's is taken for all of them. */
		CHECK(slot->memcg == memcg);
		charged[memcg]--;
		slot->memcg = 0;
		charged[0]++;
	}
	others();
}

#define CONFIG_MEMREAP_SWAP_DEFER
#include CODE

static struct swap_run waiting[NR_DEVICES * NR_SLOTS];
static unsigned int nr_waiting;
static struct mm_struct mm;

bool memreap_swap_defer(const struct swap_run *ours, unsigned int nr,
			struct mm_struct *mm_of_batch)
{
	CHECK(mm_of_batch == &mm && nr && nr <= SWAP_BATCH_RUNS);
	if (one_in(2))
		return false;
	for (unsigned int i = 0; i < nr; i++) {
		CHECK(ours[i].type == ours->type);
		check_ours(ours[i].type, ours[i].offset, ours[i].nr);
		for (unsigned int k = 0; k < ours[i].nr; k++) {
			struct slot *slot = slot_of(ours[i].type,
						    ours[i].offset + k);

			CHECK(!slot->memcg && !slot->waits);
			slot->waits = true;
		}
		nr_deferred += ours[i].nr;
		waiting[nr_waiting++] = ours[i];
	}

	return true;
}

/* --- Tests --- */

static void start(void)
{
	CHECK(!nr_waiting);
	memset(devices, 0, sizeof(devices));
	memset(charged, 0, sizeof(charged));
	zswap_used = one_in(2);
	for (unsigned int type = 0; type < NR_DEVICES; type++) {
		struct swap_info_struct *si = &devices[type];

		si->type = type;
		si->swap_map = si->map;
		si->zeromap = si->zero;
		si->device.bd_disk = &si->disk;
		si->device.type = type;
		si->disk.fops = one_in(4) ? &not_notified : &notified;
		/* Or else it is a file. */
		if (!one_in(4)) {
			si->flags = SWP_BLKDEV;
			si->bdev = &si->device;
		}
		swap_info[type] = si;
		for (unsigned int i = 0; i < NR_SLOTS; i++) {
			if (!one_in(8))
				use_slot(si, i);
		}
	}
}

/* Takes a reference to each of up to @nr slots in a row; returns how many. */
static unsigned int hold(unsigned int type, unsigned long first,
			 unsigned int nr)
{
	struct swap_info_struct *si = &devices[type];
	unsigned int i;

	for (i = 0; i < nr && first + i < NR_SLOTS; i++) {
		struct slot *slot = &si->slots[first + i];

		if (!si->map[first + i] || slot->refs + slot->held == 0 ||
		    is_ours(type, first + i))
			break;
		/* Mostly its only one. */
		if (slot->refs && !one_in(8))
			slot->refs--;
		else
			si->map[first + i]++;
		slot->held++;
	}

	return i;
}

static void make_batch(struct swap_batch *batch)
{
	memset(batch, 0, sizeof(*batch));
	batch->mm = &mm;
	while (!swap_batch_full(batch) && !one_in(24)) {
		unsigned int type = one_in(8), first = rnd(&seed) % NR_SLOTS;
		unsigned int nr = one_in(2) ? 1 + rnd(&seed) % 4 :
					      1 + rnd(&seed) % SWAP_BATCH_PAGES;

		nr = hold(type, first, min(nr, SWAP_BATCH_PAGES - batch->pages));
		if (!nr)
			continue;
		batch->runs[batch->nr++] = (struct swap_run){
			.offset = first, .nr = nr, .type = type
		};
		batch->pages += nr;
	}
}

/* No reference of a batch is left, and nothing is free that should not be. */
static void check_slots(void)
{
	long expected[NR_MEMCGS + 1] = {};

	for (unsigned int type = 0; type < NR_DEVICES; type++) {
		struct swap_info_struct *si = &devices[type];
		unsigned int used[NR_SLOTS / SWAPFILE_CLUSTER] = {};

		CHECK(!si->users && !si->lock);
		for (unsigned int i = 0; i < NR_SLOTS; i++) {
			struct slot *slot = &si->slots[i];
			bool cache = slot->folio || slot->faulting || slot->waits;

			CHECK(si->map[i] ==
			      slot->refs + slot->held + cache * SWAP_HAS_CACHE);
			/* Only a device that is gone leaves any. */
			CHECK(!slot->held || si->gone);
			if (!si->map[i])
				continue;
			used[i / SWAPFILE_CLUSTER]++;
			expected[slot->memcg]++;
			if (!slot->waits)
				CHECK(slot->stored);
		}
		for (unsigned int i = 0; i < ARRAY_SIZE(used); i++) {
			CHECK(!si->clusters[i].locked);
			CHECK(si->clusters[i].count == used[i]);
		}
	}
	for (unsigned int i = 0; i <= NR_MEMCGS; i++)
		CHECK(charged[i] == expected[i]);
}

static void release(const struct swap_batch *batch)
{
	unsigned int freed;

	nr_freed = 0;
	nr_deferred = 0;
	freed = swap_free_batch(batch);
	CHECK(freed == nr_freed + nr_deferred);
	for (const struct swap_run *run = batch->runs;
	     run < batch->runs + batch->nr; run++) {
		if (devices[run->type].gone)
			continue;
		for (unsigned int i = 0; i < run->nr; i++)
			slot_of(run->type, run->offset + i)->held = 0;
	}
	check_slots();
}

/* Of slots that only the swap cache has left, it was asked to give them up. */
static void check_tried(const struct swap_batch *batch)
{
	for (const struct swap_run *run = batch->runs;
	     run < batch->runs + batch->nr; run++) {
		for (unsigned int i = 0; i < run->nr; i++) {
			const struct slot *slot = slot_of(run->type,
							  run->offset + i);

			CHECK(!slot->folio || slot->refs || slot->tried ||
			      devices[run->type].gone);
		}
	}
}

/* As the worker does it, some time later. */
static void free_waiting(void)
{
	while (nr_waiting) {
		const struct swap_run *run = &waiting[--nr_waiting];

		swap_free_ours(run, 1);
	}
	check_slots();
}

static void test_random(void)
{
	unsigned int freed = 0, full = 0;

	for (unsigned int round = 0; round < 3000; round++) {
		start();
		others_enabled = round % 2;
		for (unsigned int i = 0; i < 3; i++) {
			struct swap_batch batch;

			for (unsigned int k = 0; k < 200; k++)
				others_use(&devices[k % NR_DEVICES],
					   rnd(&seed) % NR_SLOTS);
			make_batch(&batch);
			devices[1].gone = one_in(8);
			release(&batch);
			freed += nr_freed + nr_deferred;
			full += batch.nr == SWAP_BATCH_RUNS;
			if (!others_enabled)
				check_tried(&batch);
			if (devices[1].gone)
				break;
			if (one_in(2))
				free_waiting();
		}
		free_waiting();
	}
	CHECK(!nr_warnings);
	/* They did meet. */
	CHECK(freed > 10000 && full > 100);
}

/* Slot @offset of the first device, whose only reference is the batch's. */
static void hold_alone(unsigned int offset)
{
	struct swap_info_struct *si = &devices[0];

	if (!si->map[offset])
		use_slot(si, offset);
	si->slots[offset].refs = 0;
	si->slots[offset].held = 1;
}

/* More runs come out of a batch than go in: a slot in the last one stays. */
static void test_split(void)
{
	/* All of it in one cluster. */
	const unsigned int last = 2 * SWAP_BATCH_RUNS;

	static_assert(2 * SWAP_BATCH_RUNS % SWAPFILE_CLUSTER == 0);
	for (unsigned int times = 0; times < 20; times++) {
		struct swap_batch batch = { .mm = &mm };

		others_enabled = false;
		start();
		for (; batch.nr < SWAP_BATCH_RUNS - 1; batch.nr++) {
			hold_alone(2 * batch.nr);
			batch.runs[batch.nr] = (struct swap_run){
				.offset = 2 * batch.nr, .nr = 1
			};
		}
		batch.runs[batch.nr++] = (struct swap_run){
			.offset = last, .nr = 3
		};
		for (unsigned int i = 0; i < 3; i++)
			hold_alone(last + i);
		devices[0].slots[last + 1].refs++;
		devices[0].map[last + 1]++;
		batch.pages = batch.nr + 2;
		release(&batch);
		CHECK(nr_freed + nr_deferred == SWAP_BATCH_RUNS + 1);
		free_waiting();
	}
}

/* A page table that is corrupted: a slot to which there are no references. */
static void test_corrupted(void)
{
	struct swap_batch batch = { .mm = &mm, .nr = 1, .pages = 3 };

	others_enabled = false;
	start();
	for (unsigned int i = 0; i < 3; i++)
		hold_alone(i);
	free_slot(&devices[0], 1);
	batch.runs[0] = (struct swap_run){ .offset = 0, .nr = 3 };
	release(&batch);
	CHECK(nr_warnings == 1);
	CHECK(nr_freed + nr_deferred == 2);
	free_waiting();
	nr_warnings = 0;
}

int main(int argc, char **argv)
{
	static const struct test tests[] = {
		{ "random", test_random },
		{ "split", test_split },
		{ "corrupted", test_corrupted },
	};

	return run_tests(tests, ARRAY_SIZE(tests), argc, argv);
}
