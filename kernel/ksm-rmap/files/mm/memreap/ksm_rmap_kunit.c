// SPDX-License-Identifier: GPL-2.0-only
/*
 * KUnit tests for reverse-map walks of KSM pages.
 *
 * A world is a set of VMAs in real interval trees under real locks, with
 * address spaces and a folio that are only compared: the tests need neither page
 * tables nor memory.
 */
#include <kunit/test.h>

#include <linux/completion.h>
#include <linux/delay.h>
#include <linux/kthread.h>
#include <linux/mm.h>
#include <linux/prandom.h>
#include <linux/rmap.h>
#include <linux/sizes.h>

#include "ksm_rmap.h"

#define MAX_VMAS	2048
#define MAX_PLACES	256
#define MAX_VISITS	2048
#define NR_MMS		4
#define NR_ROOTS	2

/* The tests distinguish these by address only. */
static char fake_mms[NR_MMS];
static char fake_folio;

#define MM(i)		((struct mm_struct *)&fake_mms[i])
#define FOLIO		((struct folio *)&fake_folio)

/**
 * struct link - a VMA in the tree of an anon_vma
 * @avc: the link
 * @anon_vma: where
 */
struct link {
	struct anon_vma_chain avc;
	struct anon_vma *anon_vma;
};

/**
 * struct piece - a VMA and its links, to the trees of all its ancestors
 * @vma: the VMA; gone if it is in no tree
 * @links: the first one to the VMA's own anon_vma
 * @nr_links: in use
 */
struct piece {
	struct vm_area_struct vma;
	struct link links[NR_MMS];
	unsigned int nr_links;
};

/**
 * struct visit - a call of rmap_one()
 * @vma: the VMA
 * @address: in it
 */
struct visit {
	struct vm_area_struct *vma;
	unsigned long address;
};

/**
 * struct world - all there is
 * @rnd: state of pick()
 * @anon_vmas: one per address space of each family
 * @pieces: VMAs
 * @nr_pieces: entries in @pieces
 * @places: where the page was merged
 * @nr_places: entries in @places
 * @visits: what a walk did
 * @nr_visits: entries in @visits
 * @stop_after: visits after which rmap_one() returns false, if not 0
 * @done_after: visits after which done() says so, if not 0
 * @on_visit: called at each visit
 * @arg: for @on_visit
 */
struct world {
	struct rnd_state rnd;
	struct anon_vma anon_vmas[NR_ROOTS][NR_MMS];
	struct piece *pieces;
	unsigned int nr_pieces;
	struct memreap_ksm_place places[MAX_PLACES];
	unsigned int nr_places;
	struct visit visits[MAX_VISITS];
	unsigned int nr_visits;
	unsigned int stop_after;
	unsigned int done_after;
	void (*on_visit)(struct world *world);
	void *arg;
};

static unsigned int pick(struct world *world, unsigned int end)
{
	return prandom_u32_state(&world->rnd) % end;
}

KUNIT_DEFINE_ACTION_WRAPPER(free_pieces, kvfree, const void *);

static struct world *make_world(struct kunit *test, u64 seed)
{
	struct world *world = kunit_kzalloc(test, sizeof(*world), GFP_KERNEL);

	KUNIT_ASSERT_NOT_NULL(test, world);
	world->pieces = kvcalloc(MAX_VMAS, sizeof(*world->pieces), GFP_KERNEL);
	KUNIT_ASSERT_NOT_NULL(test, world->pieces);
	KUNIT_ASSERT_EQ(test, 0,
			kunit_add_action_or_reset(test, free_pieces,
						  world->pieces));
	prandom_seed_state(&world->rnd, seed);
	for (int root = 0; root < NR_ROOTS; root++) {
		for (int mm = 0; mm < NR_MMS; mm++) {
			struct anon_vma *av = &world->anon_vmas[root][mm];

			av->root = &world->anon_vmas[root][0];
			init_rwsem(&av->rwsem);
			av->rb_root = RB_ROOT_CACHED;
		}
	}

	return world;
}

static struct piece *new_piece(struct world *world, unsigned int mm,
			       unsigned long start, unsigned long pages,
			       pgoff_t pgoff)
{
	struct piece *piece;

	if (world->nr_pieces == MAX_VMAS)
		return NULL;
	piece = &world->pieces[world->nr_pieces++];
	piece->vma.vm_mm = MM(mm);
	piece->vma.vm_start = start;
	piece->vma.vm_end = start + pages * PAGE_SIZE;
	piece->vma.vm_pgoff = pgoff;

	return piece;
}

static void link_piece(struct piece *piece, struct anon_vma *anon_vma)
{
	struct link *link = &piece->links[piece->nr_links++];

	link->anon_vma = anon_vma;
	link->avc.vma = &piece->vma;
	if (piece->nr_links == 1)
		piece->vma.anon_vma = anon_vma;
	anon_vma_interval_tree_insert(&link->avc, &anon_vma->rb_root);
}

static void unlink_piece(struct piece *piece)
{
	for (unsigned int i = 0; i < piece->nr_links; i++)
		anon_vma_interval_tree_remove(&piece->links[i].avc,
					      &piece->links[i].anon_vma->rb_root);
	piece->nr_links = 0;
}

/* Bounds and offset of a VMA in a tree must not change. */
static void relink_piece(struct piece *piece, unsigned long start,
			 unsigned long end, pgoff_t pgoff)
{
	unsigned int nr = piece->nr_links;
	struct anon_vma *anon_vmas[NR_MMS];

	for (unsigned int i = 0; i < nr; i++)
		anon_vmas[i] = piece->links[i].anon_vma;
	unlink_piece(piece);
	piece->vma.vm_start = start;
	piece->vma.vm_end = end;
	piece->vma.vm_pgoff = pgoff;
	for (unsigned int i = 0; i < nr; i++)
		link_piece(piece, anon_vmas[i]);
}

static bool is_free(struct world *world, struct mm_struct *mm,
		    unsigned long start, unsigned long end)
{
	for (unsigned int i = 0; i < world->nr_pieces; i++) {
		struct piece *piece = &world->pieces[i];

		if (piece->nr_links && piece->vma.vm_mm == mm &&
		    piece->vma.vm_start < end && start < piece->vma.vm_end)
			return false;
	}

	return true;
}

/* As mmap() and a first write: the index follows from the address. */
static void map(struct world *world, unsigned int root, unsigned int mm,
		unsigned long page, unsigned long pages)
{
	unsigned long start = page * PAGE_SIZE;
	struct piece *piece;

	if (!is_free(world, MM(mm), start, start + pages * PAGE_SIZE))
		return;
	piece = new_piece(world, mm, start, pages, page);
	if (piece)
		link_piece(piece, &world->anon_vmas[root][mm]);
}

/* As mremap(): the index stays. */
static void move(struct world *world, struct piece *piece, unsigned long page)
{
	unsigned long size = piece->vma.vm_end - piece->vma.vm_start;
	unsigned long start = page * PAGE_SIZE;

	if (piece->nr_links &&
	    is_free(world, piece->vma.vm_mm, start, start + size))
		relink_piece(piece, start, start + size, piece->vma.vm_pgoff);
}

/* As mprotect() of a part. */
static void split(struct world *world, struct piece *piece)
{
	unsigned long pages = vma_pages(&piece->vma);
	unsigned long end = piece->vma.vm_end;
	struct piece *upper;
	unsigned long at;

	if (!piece->nr_links || pages < 2)
		return;
	at = 1 + pick(world, pages - 1);
	upper = new_piece(world, 0, piece->vma.vm_start + at * PAGE_SIZE,
			  pages - at, piece->vma.vm_pgoff + at);
	if (!upper)
		return;
	upper->vma.vm_mm = piece->vma.vm_mm;
	relink_piece(piece, piece->vma.vm_start, end - (pages - at) * PAGE_SIZE,
		     piece->vma.vm_pgoff);
	for (unsigned int i = 0; i < piece->nr_links; i++)
		link_piece(upper, piece->links[i].anon_vma);
}

/* As mprotect() that makes two neighbours the same again. */
static void merge(struct world *world, struct piece *piece)
{
	for (unsigned int i = 0; i < world->nr_pieces; i++) {
		struct piece *next = &world->pieces[i];

		if (!piece->nr_links || !next->nr_links ||
		    next->vma.vm_mm != piece->vma.vm_mm ||
		    next->vma.anon_vma != piece->vma.anon_vma ||
		    next->vma.vm_start != piece->vma.vm_end ||
		    next->vma.vm_pgoff !=
				piece->vma.vm_pgoff + vma_pages(&piece->vma))
			continue;
		unlink_piece(next);
		relink_piece(piece, piece->vma.vm_start, next->vma.vm_end,
			     piece->vma.vm_pgoff);
		return;
	}
}

/* As fork(): the child's VMAs are in the trees of all ancestors, after them. */
static void fork_mm(struct world *world, unsigned int root,
		    unsigned int parent, unsigned int child, unsigned int share)
{
	unsigned int nr = world->nr_pieces;

	for (unsigned int i = 0; i < nr; i++) {
		struct piece *from = &world->pieces[i];
		struct piece *to;

		if (!from->nr_links || from->vma.vm_mm != MM(parent) ||
		    from->links[0].anon_vma->root !=
				&world->anon_vmas[root][0] ||
		    pick(world, 100) >= share)
			continue;
		to = new_piece(world, child, from->vma.vm_start,
			       vma_pages(&from->vma), from->vma.vm_pgoff);
		if (!to)
			return;
		link_piece(to, &world->anon_vmas[root][child]);
		for (unsigned int j = 0; j < from->nr_links; j++)
			link_piece(to, from->links[j].anon_vma);
	}
}

static void add_place(struct world *world, struct piece *piece,
		      unsigned long page)
{
	struct memreap_ksm_place *place = &world->places[world->nr_places];

	if (!piece->nr_links || world->nr_places == MAX_PLACES)
		return;
	place->anon_vma = piece->vma.anon_vma;
	place->mm = piece->vma.vm_mm;
	place->address = piece->vma.vm_start + page * PAGE_SIZE;
	place->pgoff = linear_page_index(&piece->vma, place->address);
	world->nr_places++;
}

/* A page of @nr VMAs of one page each, merged at all of them. */
static void plain_world(struct world *world, unsigned int nr)
{
	for (unsigned int i = 0; i < nr; i++) {
		map(world, 0, 0, 0x1000 + i, 1);
		add_place(world, &world->pieces[i], 0);
	}
}

static bool visit_one(struct folio *folio, struct vm_area_struct *vma,
		      unsigned long address, void *arg)
{
	struct world *world = arg;

	if (folio != FOLIO || world->nr_visits == MAX_VISITS)
		return false;
	world->visits[world->nr_visits++] = (struct visit){ vma, address };
	if (world->on_visit)
		world->on_visit(world);

	return world->nr_visits != world->stop_after;
}

static struct world *asked;

static int visit_done(struct folio *folio)
{
	return asked->nr_visits == asked->done_after;
}

/* In the way ksm.c does it. Returns what the tracepoint would tell. */
static struct memreap_rmap_count go(struct world *world,
				    struct rmap_walk_control *rwc)
{
	struct memreap_ksm_walk walk;

	rwc->arg = world;
	rwc->rmap_one = visit_one;
	if (world->done_after) {
		asked = world;
		rwc->done = visit_done;
	}
	world->nr_visits = 0;
	memreap_ksm_walk_start(&walk, FOLIO, rwc);
	do {
		for (unsigned int i = 0; i < world->nr_places; i++) {
			if (!memreap_ksm_walk_place(&walk, &world->places[i]))
				goto out;
		}
	} while (memreap_ksm_walk_again(&walk));
out:
	memreap_ksm_walk_end(&walk);

	return walk.count;
}

static void expect_unlocked(struct kunit *test, struct world *world)
{
	for (int root = 0; root < NR_ROOTS; root++)
		KUNIT_EXPECT_FALSE(test,
				   rwsem_is_locked(&world->anon_vmas[root][0].rwsem));
}

/* Does a walk of all VMAs visit @vma for @place in this pass? */
static bool covers(const struct memreap_ksm_place *place,
		   struct vm_area_struct *vma, bool forks)
{
	return place->address >= vma->vm_start &&
	       place->address < vma->vm_end &&
	       (place->mm == vma->vm_mm) != forks;
}

/*
 * All VMAs of all places, as they come: a narrow walk must visit those with
 * the page at the index, once and in this order, may visit others that cover
 * the address, and nothing else.
 */
static void expect_as_full_walk(struct kunit *test, struct world *world,
				u64 seed)
{
	unsigned int at = 0;

	for (int forks = 0; forks < 2; forks++) {
		for (unsigned int i = 0; i < world->nr_places; i++) {
			struct memreap_ksm_place *place = &world->places[i];
			struct anon_vma_chain *avc;

			anon_vma_interval_tree_foreach(avc,
						       &place->anon_vma->rb_root,
						       0, ULONG_MAX) {
				struct visit *visit = &world->visits[at];
				struct vm_area_struct *vma = avc->vma;

				if (!covers(place, vma, forks))
					continue;
				if (at < world->nr_visits &&
				    visit->vma == vma &&
				    visit->address == place->address) {
					at++;
					continue;
				}
				KUNIT_EXPECT_NE_MSG(test, place->pgoff,
						    linear_page_index(vma, place->address),
						    "seed %llu: visit %u, place %u: VMA at %lx not visited",
						    seed, at, i, vma->vm_start);
			}
		}
	}
	KUNIT_EXPECT_EQ_MSG(test, at, world->nr_visits,
			    "seed %llu: visits beyond a full walk's", seed);
}

static struct piece *any(struct world *world)
{
	return &world->pieces[pick(world, world->nr_pieces)];
}

/* A few hundred VMAs, with a history. */
static void random_world(struct world *world)
{
	unsigned int forks = 0;

	for (int i = 0; i < 40; i++)
		map(world, pick(world, NR_ROOTS), 0, 0x1000 + pick(world, 200),
		    1 + pick(world, 8));
	for (int i = 0; i < 300; i++) {
		struct piece *piece = any(world);

		switch (pick(world, 8)) {
		case 0:
		case 1:
			split(world, piece);
			break;
		case 2:
			merge(world, piece);
			break;
		case 3:
			move(world, piece, 0x1000 + pick(world, 300));
			break;
		case 4:
			map(world, pick(world, NR_ROOTS), pick(world, forks + 1),
			    0x1000 + pick(world, 300), 1 + pick(world, 8));
			break;
		case 5:
			if (forks + 1 < NR_MMS && !pick(world, 20)) {
				unsigned int parent = pick(world, forks + 1);

				forks++;
				for (int root = 0; root < NR_ROOTS; root++)
					fork_mm(world, root, parent, forks, 90);
			}
			break;
		case 6:
			if (!pick(world, 8))
				unlink_piece(piece);
			break;
		case 7:
			if (piece->nr_links)
				add_place(world, piece,
					  pick(world, vma_pages(&piece->vma)));
			break;
		}
	}
}

static void visits_what_a_full_walk_finds(struct kunit *test)
{
	unsigned int visits = 0, forked = 0;

	for (u64 seed = 1; seed <= 200; seed++) {
		struct world *world = make_world(test, seed);
		struct rmap_walk_control rwc = {};
		struct memreap_rmap_count count;

		random_world(world);
		count = go(world, &rwc);
		expect_as_full_walk(test, world, seed);
		expect_unlocked(test, world);
		KUNIT_EXPECT_EQ(test, count.mappings, world->nr_visits);
		visits += world->nr_visits;
		for (unsigned int i = 0; i < world->nr_visits; i++)
			forked += world->visits[i].vma->vm_mm != MM(0);

		if (seed % 10 == 0) {
			/* Off, it is the full walk. */
			static_branch_disable(&memreap_ksm_rmap_key);
			count = go(world, &rwc);
			static_branch_enable(&memreap_ksm_rmap_key);
			expect_as_full_walk(test, world, seed);
			expect_unlocked(test, world);
			KUNIT_EXPECT_EQ(test, count.mappings, world->nr_visits);
		}
		kunit_release_action(test, free_pieces, world->pieces);
		kunit_kfree(test, world);
	}
	/* Otherwise there was nothing to find. */
	KUNIT_EXPECT_GT(test, visits, 1000);
	KUNIT_EXPECT_GT(test, forked, 100);
}

static void looks_at_few_of_many(struct kunit *test)
{
	struct world *world = make_world(test, 1);
	struct rmap_walk_control rwc = {};
	struct memreap_rmap_count count;

	plain_world(world, MAX_VMAS);
	KUNIT_ASSERT_EQ(test, world->nr_pieces, MAX_VMAS);
	world->nr_places = 100;

	count = go(world, &rwc);
	KUNIT_EXPECT_EQ(test, count.mappings, 100);
	KUNIT_EXPECT_EQ(test, count.vmas, 100);

	static_branch_disable(&memreap_ksm_rmap_key);
	count = go(world, &rwc);
	static_branch_enable(&memreap_ksm_rmap_key);
	KUNIT_EXPECT_EQ(test, count.mappings, 100);
	KUNIT_EXPECT_EQ(test, count.vmas, 100 * 2 * MAX_VMAS);
	KUNIT_EXPECT_EQ(test, count.locks, 200);
}

static void same_index_elsewhere_is_another_page(struct kunit *test)
{
	struct world *world = make_world(test, 1);
	struct rmap_walk_control rwc = {};

	/* Moved away, and its old place taken: twice the index, once the page. */
	map(world, 0, 0, 0x1000, 4);
	move(world, &world->pieces[0], 0x2000);
	map(world, 0, 0, 0x1000, 4);
	add_place(world, &world->pieces[0], 2);
	go(world, &rwc);
	KUNIT_ASSERT_EQ(test, world->nr_visits, 1);
	KUNIT_EXPECT_PTR_EQ(test, world->visits[0].vma, &world->pieces[0].vma);
	KUNIT_EXPECT_EQ(test, world->visits[0].address, 0x2002 * PAGE_SIZE);

	world->nr_places = 0;
	add_place(world, &world->pieces[1], 2);
	go(world, &rwc);
	KUNIT_ASSERT_EQ(test, world->nr_visits, 1);
	KUNIT_EXPECT_PTR_EQ(test, world->visits[0].vma, &world->pieces[1].vma);
}

static void parents_come_before_children(struct kunit *test)
{
	struct world *world = make_world(test, 1);
	struct rmap_walk_control rwc = {};

	plain_world(world, 3);
	fork_mm(world, 0, 0, 1, 100);
	fork_mm(world, 0, 1, 2, 100);
	go(world, &rwc);
	KUNIT_ASSERT_EQ(test, world->nr_visits, 9);
	for (int i = 0; i < 3; i++)
		KUNIT_EXPECT_PTR_EQ(test, world->visits[i].vma->vm_mm, MM(0));
	for (int i = 3; i < 9; i++)
		KUNIT_EXPECT_PTR_EQ(test, world->visits[i].vma->vm_mm,
				    MM(1 + (i - 3) % 2));
}

static void the_dead_leave_children(struct kunit *test)
{
	struct world *world = make_world(test, 1);
	struct rmap_walk_control rwc = {};

	plain_world(world, 3);
	fork_mm(world, 0, 0, 1, 100);
	for (int i = 0; i < 3; i++)
		unlink_piece(&world->pieces[i]);
	go(world, &rwc);
	KUNIT_ASSERT_EQ(test, world->nr_visits, 3);
	for (int i = 0; i < 3; i++)
		KUNIT_EXPECT_PTR_EQ(test, world->visits[i].vma->vm_mm, MM(1));
}

static void ends_when_told(struct kunit *test)
{
	struct world *world = make_world(test, 1);
	struct rmap_walk_control rwc = {};

	plain_world(world, 20);
	fork_mm(world, 0, 0, 1, 100);
	for (unsigned int after = 1; after <= 40; after++) {
		world->stop_after = after;
		go(world, &rwc);
		KUNIT_EXPECT_EQ(test, world->nr_visits, after);
		expect_unlocked(test, world);
	}
	world->stop_after = 0;
	for (unsigned int after = 1; after <= 40; after++) {
		world->done_after = after;
		go(world, &rwc);
		KUNIT_EXPECT_EQ(test, world->nr_visits, after);
		expect_unlocked(test, world);
	}
}

static bool invalid_child(struct vm_area_struct *vma, void *arg)
{
	return vma->vm_mm == MM(1);
}

static void invalid_vmas_are_passed_over(struct kunit *test)
{
	struct world *world = make_world(test, 1);
	struct rmap_walk_control rwc = { .invalid_vma = invalid_child };

	plain_world(world, 3);
	fork_mm(world, 0, 0, 1, 100);
	fork_mm(world, 0, 0, 2, 100);
	go(world, &rwc);
	KUNIT_EXPECT_EQ(test, world->nr_visits, 6);
	for (unsigned int i = 0; i < world->nr_visits; i++)
		KUNIT_EXPECT_PTR_NE(test, world->visits[i].vma->vm_mm, MM(1));
}

static void does_not_wait_if_it_must_not(struct kunit *test)
{
	struct world *world = make_world(test, 1);
	struct rmap_walk_control rwc = { .try_lock = true };
	struct rw_semaphore *rwsem = &world->anon_vmas[0][0].rwsem;

	plain_world(world, 3);
	go(world, &rwc);
	KUNIT_EXPECT_EQ(test, world->nr_visits, 3);
	KUNIT_EXPECT_FALSE(test, rwc.contended);

	down_write(rwsem);
	go(world, &rwc);
	up_write(rwsem);
	KUNIT_EXPECT_EQ(test, world->nr_visits, 0);
	KUNIT_EXPECT_TRUE(test, rwc.contended);
	expect_unlocked(test, world);
}

static void keeps_the_lock_for_a_while(struct kunit *test)
{
	struct world *world = make_world(test, 1);
	struct rmap_walk_control rwc = {};
	struct memreap_rmap_count count;

	plain_world(world, 100);
	/* Where a task is to be preempted all the time it may be less. */
	count = go(world, &rwc);
	KUNIT_EXPECT_GE(test, count.locks,
			DIV_ROUND_UP(100, MEMREAP_KSM_MAX_PLACES));
	KUNIT_EXPECT_LT(test, count.locks, 100);

	/* Another family's lock is another lock. */
	world->nr_places = 0;
	for (int i = 0; i < 20; i++) {
		map(world, 1, 0, 0x3000 + i, 1);
		add_place(world, &world->pieces[i], 0);
		add_place(world, &world->pieces[100 + i], 0);
	}
	count = go(world, &rwc);
	KUNIT_EXPECT_EQ(test, count.mappings, 40);
	KUNIT_EXPECT_EQ(test, count.locks, 40);
	expect_unlocked(test, world);
}

/**
 * struct waiter - a task that wants the lock that a walk holds
 * @rwsem: the lock
 * @go: to be waited for before
 * @gone: it has had it
 * @world: that the walk goes through
 * @visits: of the walk when it got it
 */
struct waiter {
	struct rw_semaphore *rwsem;
	struct completion go;
	struct completion gone;
	struct world *world;
	unsigned int visits;
};

static int wait_for_lock(void *arg)
{
	struct waiter *waiter = arg;

	wait_for_completion(&waiter->go);
	down_write(waiter->rwsem);
	waiter->visits = waiter->world->nr_visits;
	up_write(waiter->rwsem);
	complete(&waiter->gone);

	return 0;
}

static void let_one_wait(struct world *world)
{
	struct waiter *waiter = world->arg;

	if (world->nr_visits != 1)
		return;
	complete(&waiter->go);
	for (int i = 0; i < 5000 && !rwsem_is_contended(waiter->rwsem); i++)
		usleep_range(500, 1000);
}

static void gives_the_lock_up_when_wanted(struct kunit *test)
{
	struct world *world = make_world(test, 1);
	struct rmap_walk_control rwc = {};
	struct waiter waiter = {
		.rwsem = &world->anon_vmas[0][0].rwsem,
		.world = world,
	};
	struct memreap_rmap_count count;
	struct task_struct *task;

	init_completion(&waiter.go);
	init_completion(&waiter.gone);
	plain_world(world, MEMREAP_KSM_MAX_PLACES);
	world->on_visit = let_one_wait;
	world->arg = &waiter;
	task = kthread_run(wait_for_lock, &waiter, "ksm-rmap-waiter");
	KUNIT_ASSERT_FALSE(test, IS_ERR(task));

	count = go(world, &rwc);
	complete(&waiter.go);
	wait_for_completion(&waiter.gone);
	KUNIT_EXPECT_EQ(test, world->nr_visits, MEMREAP_KSM_MAX_PLACES);
	/* Without a waiter, all places would be one hold. */
	KUNIT_EXPECT_GE(test, count.locks, 2);
	KUNIT_EXPECT_GE(test, waiter.visits, 1);
}

static struct kunit_case ksm_rmap_cases[] = {
	KUNIT_CASE_SLOW(visits_what_a_full_walk_finds),
	KUNIT_CASE(looks_at_few_of_many),
	KUNIT_CASE(same_index_elsewhere_is_another_page),
	KUNIT_CASE(parents_come_before_children),
	KUNIT_CASE(the_dead_leave_children),
	KUNIT_CASE(ends_when_told),
	KUNIT_CASE(invalid_vmas_are_passed_over),
	KUNIT_CASE(does_not_wait_if_it_must_not),
	KUNIT_CASE(keeps_the_lock_for_a_while),
	KUNIT_CASE(gives_the_lock_up_when_wanted),
	{}
};

static struct kunit_suite ksm_rmap_suite = {
	.name = "memreap_ksm_rmap",
	.test_cases = ksm_rmap_cases,
};

kunit_test_suite(ksm_rmap_suite);

MODULE_LICENSE("GPL");
MODULE_DESCRIPTION("KUnit tests for reverse-map walks of KSM pages");
