import { describe, expect, it } from "vitest";
import { bucketsOf, hidden } from "../../src/collectives/buckets.ts";
import { whyLines } from "../../src/collectives/details.ts";
import { latenessOf } from "../../src/collectives/heatmap.ts";
import { callRows, rankLanes, topmost } from "../../src/collectives/lanes.ts";
import { CollectivesModel, sectionColumns } from "../../src/collectives/model.ts";
import { callTable } from "../../src/collectives/tables.ts";
import { RankSimulation, type RankOptions } from "../../src/dev/ranks.ts";
import { decodeFrame } from "../../src/decoding.ts";
import type { Theme } from "../../src/theme.ts";

function model(options: RankOptions = {}, ms = 1200): CollectivesModel {
  const simulation = new RankSimulation(options);
  simulation.advance(ms);
  const { content, buffers } = simulation.frame(true);
  return new CollectivesModel(content.collectives!, sectionColumns(decodeFrame(content, buffers).columns)!);
}
const theme = { colours: {}, family: (name: string) => name, labelOn: () => "#111" } as unknown as Theme;

describe("joined collectives", () => {
  it("split the time of a call into waiting and transferring, at the moment when the last rank came", () => {
    const one = model();
    expect([one.ranks, one.rows % 4]).toEqual([4, 0]);
    for (let call = 0; call < one.rows; call++) {
      const begins = [0, 1, 2, 3].map((rank) => one.begin(rank, call));
      expect(one.last(call)).toBe(Math.max(...begins));
      begins.forEach((begin, rank) => {
        expect(one.waiting(rank, call) + one.transfer(rank, call)).toBeCloseTo(one.end(rank, call) - begin, 9);
        expect(one.waiting(rank, call)).toBeGreaterThanOrEqual(0);
      });
    }
  });

  it("name the first call of the step that a rank came late to, with the reason", () => {
    const one = model();
    const call = one.latest();
    expect([one.lateRank(call), one.bucket(call), one.step(call) % 5]).toEqual([2, 0, 4]);
    expect(whyLines(one, call)[0]).toMatch(/^Rank 2 was last, by 4\d\.\d ms$/);
    expect(whyLines(one, call)[1]).toContain("data.take");
    expect(whyLines(one, call)[1]).toMatch(/^4\d\.\d ms in data\.take, the median of the others/);
    const other = one.order.find((row) => one.lateRank(row) < 0)!; // 0.8 ms, and the clocks may be as far apart
    expect(whyLines(one, other)[0]).toBe("Nobody was late");
    expect(model({ delay: () => 0 }).latest()).toBe(-1);
  });

  it("find a call again after the window has moved on", () => {
    const one = model();
    const call = one.latest();
    expect(one.find("world", one.seq(call))).toBe(call);
    expect(one.find("world", 100_000)).toBe(-1);
    expect(one.find("other", one.seq(call))).toBe(-1);
  });

  it("stand in lanes: calls in flight at one time under each other, the late rank's block told apart", () => {
    const one = model();
    const rows = callRows(one);
    for (let call = 1; call < one.rows; call++) {
      const previous = call - 1;
      const overlap = Math.min(...[0, 1, 2, 3].map((rank) => one.begin(rank, call))) < one.exit(previous);
      if (overlap && one.step(call) === one.step(previous)) expect(rows[call]).not.toBe(rows[previous]);
    }
    const lanes = rankLanes(one, theme, [0, 1, 2, 3], 9, 60, 300);
    expect(lanes.content.lanes.map(({ title }) => title)).toEqual(["rank 0", "rank 1", "rank 2", "rank 3"]);
    expect(lanes.content.lanes[2]!.notes).toEqual(["host b", "±400 µs"]);
    expect(lanes.content.bands.map(({ label }) => label)).toContain("step 9");
    const named = (lane: number): string[] => Array.from(lanes.content.lanes[lane]!.rows[0]!.bars.start, (_, index) => lanes.name(lane, 0, index));
    expect(named(2).filter((name) => name.includes("over the median"))).not.toHaveLength(0);
    expect(named(0).filter((name) => name.includes("over the median"))).toHaveLength(0);
  });

  it("share a row where no rank has two in flight, and are as high as the place allows", () => {
    const rows = callRows(model({ delay: () => 0 }));
    expect(Math.max(...rows)).toBeLessThan(3);
    const heights = [120, 200, 300, 900].map((room) => rankLanes(model(), theme, [0, 1, 2, 3], 9, 0, room).bar);
    expect(heights).toEqual([...heights].sort((one, two) => one - two));
    expect([heights[0], heights[3]]).toEqual([5, 11]);
    const many = rankLanes(model({ ranks: 16 }), theme, Array.from({ length: 16 }, (_, rank) => rank), 9, 0, 300);
    expect(Math.max(...many.content.lanes.map(({ rows: all }) => all.length))).toBeLessThanOrEqual(4);
  });

  it("show at every moment what hides the rest: what explains a delay, phases, inner blocks, outer blocks", () => {
    const block = (start: number, end: number, name: string, over: number): Parameters<typeof topmost>[0][number] => ({ start, end, name, over, late: over === 2 });
    const pieces = topmost([block(0, 100, "train", 0), block(10, 30, "data", 0), block(12, 28, "data.take", 2), block(40, 90, "forward", 1), block(50, 60, "inner", 0)]);
    expect(pieces.map(({ start, end, name }) => [start, end, name])).toEqual([
      [0, 10, "train"], [10, 12, "data"], [12, 28, "data.take"], [28, 30, "data"], [30, 40, "train"], [40, 90, "forward"], [90, 100, "train"],
    ]);
  });

  it("tell what of a bucket the backward hides", () => {
    const one = model({ delay: () => 0 });
    const buckets = bucketsOf(one, 9, 0)!;
    expect(buckets.calls.map((call) => one.bucket(call))).toEqual([0, 1, 2, 3]);
    const shares = buckets.calls.map((call) => hidden(one, buckets, call));
    expect(shares.slice(0, 3)).toEqual([1, 1, 1]);
    expect(shares[3]).toBeLessThan(0.05);
    expect(bucketsOf(one, 99, 0)).toBeNull();
  });

  it("measure the lateness of many ranks against the median", () => {
    const one = model({ ranks: 64, delay: (rank) => (rank === 37 ? 20 : rank === 5 ? 8 : 0) });
    const { worst, means, steps } = latenessOf(one);
    expect(worst.slice(0, 2)).toEqual([37, 5]);
    expect(means[37]).toBeGreaterThan(18);
    expect(means[20]).toBeLessThan(1);
    expect(steps).toEqual(one.steps.map(({ step }) => step));
  });

  it("say who has not come to a call that hangs", () => {
    const one = model({ stuckAt: 5 }, 2000);
    const call = one.find("world", one.section.stuck!.seq);
    expect(one.pending(call)).toBe(true);
    expect(Number.isNaN(one.last(call))).toBe(true);
    expect(whyLines(one, call)).toEqual(["Rank 1 made another call", "rank 1 asks for another element type; rank 3 has not come"]);
    expect(one.members(call)).toEqual([0, 1, 2, 3]);
    expect(one.limits.t1).toBe(one.section.now_ms);
    const lanes = rankLanes(one, theme, [0, 3], 5, 0, 300);
    const row = lanes.rowOf(call);
    const bars = lanes.content.lanes[0]!.rows[row]!.bars;
    expect(bars.end[bars.length - 1]).toBe(one.section.now_ms);
    expect([...bars.item]).toContain(call);
    expect([...lanes.content.lanes[1]!.rows[row]!.bars.item]).not.toContain(call);
  });

  it("of a call that does not match shows nothing as sent", () => {
    const one = model({ stuckAt: 5, allCome: true }, 2000);
    const call = one.hanging;
    expect(Number.isNaN(one.last(call))).toBe(false);
    expect(one.pending(call)).toBe(true);
    expect(whyLines(one, call)).toEqual(["Rank 1 made another call", "rank 1 asks for another element type"]);
    const lanes = rankLanes(one, theme, [0, 1, 2, 3], 5, 0, 300);
    for (const lane of lanes.content.lanes) {
      const { bars } = lane.rows[lanes.rowOf(call)]!;
      const own = [...bars.item.keys()].filter((index) => bars.item[index] === call);
      expect(own).toHaveLength(1);
      expect(bars.end[own[0]!]).toBe(one.section.now_ms);
    }
  });

  it("are a table as well, the newest first", () => {
    const one = model();
    const { columns, rows } = callTable(one);
    expect(rows).toHaveLength(one.rows);
    expect(rows[0]![columns.indexOf("Sequence")]).toBe(one.seq(one.rows - 1));
    const late = rows.find((row) => row[columns.indexOf("Last rank")] === 2)!;
    expect(late[columns.indexOf("Late")]).toMatch(/^4\d\.\d ms$/);
  });

  it("lack nothing, or are not there", () => {
    const simulation = new RankSimulation();
    simulation.advance(300);
    const { content, buffers } = simulation.frame();
    const { columns } = decodeFrame(content, buffers);
    delete columns["collectives.end"];
    expect(sectionColumns(columns)).toBeNull();
  });
});
