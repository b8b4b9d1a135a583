/*
 * Backpressure as a model: a source, a job A that is paused by the queue of B, and B, whose worker is away for a while.
 *
 * As in the product: routing holds events of a paused job, and of one for which older ones are held; the pause is computed
 * from B's queue at every pass, not switched by events; a pass may die before its commit; what is held is released in order.
 *
 * Shown: once B's worker is back and passes no longer die, everything is done (ltl drains); tasks of A are created in the
 * order of their events, each once (the assertions). With -DOVERTAKES events do not wait behind those that are held, and with
 * -DRESUMED_BY_SIGNAL a pause ends by a message that can be lost: then the checks must fail.
 */

#define EVENTS 5
#define LIMIT 2
#define RESUME 1

chan outbox = [EVENTS] of { byte };
chan held = [EVENTS] of { byte };
chan queue_a = [EVENTS] of { byte };
chan queue_b = [EVENTS] of { byte };
bool paused = false;
bool away = true;
byte deaths = 2;
byte created = 0;
byte finished = 0;

inline create_task(number) {
    assert(number == created + 1);
    created = number;
    queue_a ! number
}

active proctype source() {
    byte number = 1;
    do
    :: number <= EVENTS -> outbox ! number; number++
    :: else -> break
    od
}

active proctype router() {
    byte number;
end:
    do
    :: atomic {
        outbox ? number ->
        if
#ifdef OVERTAKES
        :: paused -> held ! number
#else
        :: paused || nempty(held) -> held ! number
#endif
        :: else -> create_task(number)
        fi
    }
    od
}

active proctype worker_a() {
    byte number;
end:
    do
    :: queue_a ? number -> queue_b ! number
    od
}

active proctype worker_b() {
    byte number;
end:
    do
    :: atomic {
        !away && nempty(queue_b) ->
        queue_b ? number;
        finished++
#ifdef RESUMED_BY_SIGNAL
        ;
        if
        :: len(queue_b) == RESUME - 1 && deaths > 0 -> deaths-- /* the signal is lost */
        :: len(queue_b) == RESUME - 1 -> paused = false
        :: else
        fi
#endif
    }
    od
}

active proctype passes() {
    byte number;
end:
    do
    :: deaths > 0 -> deaths--
    :: atomic {
        if
        :: len(queue_b) >= LIMIT -> paused = true
#ifndef RESUMED_BY_SIGNAL
        :: len(queue_b) < RESUME -> paused = false
#endif
        :: else
        fi;
        if
        :: !paused && nempty(held) -> held ? number; create_task(number)
        :: else
        fi
    }
    od
}

active proctype recovery() {
    away = false
}

ltl drains { <> (finished == EVENTS) }
